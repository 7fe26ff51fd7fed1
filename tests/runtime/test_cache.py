import hashlib
import os
import signal
import subprocess
import sys
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from stages.runtime.atomic import file_sha256, known_sha256
from stages.runtime.cache import CACHE, SUMS, cache_key, cached, drop_unused, hash_in_workers, map_cached
from stages.runtime.errors import UserError


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, folder: Path) -> None:
    (folder / "result").write_text(text)


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing", "sums cut"])
def test_a_damaged_entry_is_computed_again(damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    def compute(folder: Path) -> None:
        (folder / "deep").mkdir()
        write("right", folder / "deep")

    result = cached("toy", cache_key("a"), compute) / "deep/result"
    if damage == "missing":
        result.unlink()
    elif damage == "sums cut":
        (result.parents[1] / SUMS).write_text("{")
    else:
        result.write_text({"flipped": "rjght", "cut": "ri"}[damage])
        os.utime(result, (0, 0))  # a write within one tick of the clock can keep the time

    assert (cached("toy", cache_key("a"), compute) / "deep/result").read_text() == "right"
    map_cached("toy", ["a"], cache_key, lambda item, folder: compute(folder))
    assert capsys.readouterr().out.count("damaged") == 1


def test_only_files_that_changed_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noting(file: Path) -> str:
        read.append(file.name)
        return file_sha256(file)

    def compute(item: str, folder: Path) -> None:
        write(item, folder)
        (folder / "other").write_text(item)

    first, _ = map_cached("toy", ["a", "b"], cache_key, compute)
    monkeypatch.setattr("stages.runtime.cache.file_sha256", noting)
    map_cached("toy", ["a", "b"], cache_key, compute)
    assert read == []

    os.utime(first / "result", (0, 0))
    for _ in range(2):
        map_cached("toy", ["a", "b"], cache_key, compute)
    assert read == ["result"]


def test_a_file_that_workers_have_hashed_is_not_read_again_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [Path(name) for name in ("a", "b")]
    for file in files:
        file.write_text(file.name)
    hash_in_workers(files)
    monkeypatch.setattr("stages.runtime.atomic.file_sha256", lambda file: f"{file.name} is read")
    os.utime("b", (0, 0))

    assert [known_sha256(file) for file in files] == [hashlib.sha256(b"a").hexdigest(), "b is read"]


def test_a_failure_leaves_no_entry() -> None:
    def fail(folder: Path) -> None:
        write("half", folder)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cached("toy", cache_key("a"), fail)

    assert [path for path in (CACHE / "toy").rglob("*") if path.is_file()] == []
    assert (cached("toy", cache_key("a"), lambda folder: write("whole", folder)) / "result").read_text() == "whole"


def test_two_that_compute_the_same_at_once_both_succeed() -> None:
    def meanwhile_another_finishes(folder: Path) -> None:
        entry = folder.with_name(folder.name.split(".")[1])
        cached("toy", cache_key("a"), partial(write, "same"))
        assert entry.is_dir()
        write("same", folder)

    entry = cached("toy", cache_key("a"), meanwhile_another_finishes)

    assert (entry / "result").read_text() == "same"
    assert sorted(path.name for path in entry.parent.iterdir()) == [entry.name]


def test_keys_differ_wherever_the_parts_differ() -> None:
    assert len({cache_key("ab", "c"), cache_key("a", "bc"), cache_key("abc"), cache_key("abc", "")}) == 4


def test_the_same_data_is_computed_again_after_an_edit_of_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = iter(["code", "code", "edited"])
    monkeypatch.setattr("stages.runtime.cache.computing_sha256", lambda module: next(codes))
    for text in ("first", "second", "third"):
        entry = cached("toy", cache_key("a"), partial(write, text))
        assert (entry / "result").read_text() == ("third" if text == "third" else "first")


def test_of_a_run_that_is_larger_than_the_limit_the_next_one_finds_as_much_as_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[int] = []

    def compute(item: int, folder: Path) -> None:
        computed.append(item)
        write("x" * 1000, folder)

    monkeypatch.setenv("PARROTFLOW_SHARD_CACHE_GB", "3.5e-6")  # each entry takes 1.1 kB with its sums
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")
    for _ in range(3):
        for item in range(5):
            map_cached("toy", [item], str, compute)
            time.sleep(0.01)  # times of use differ
        drop_unused()
    assert computed[:5] == [0, 1, 2, 3, 4]
    assert computed[5:] == [0, 1, 0, 1]


def test_the_limit_holds_for_all_kinds_together(monkeypatch: pytest.MonkeyPatch) -> None:
    first = cached("toy", cache_key("a"), lambda folder: write("x" * 1000, folder))
    time.sleep(0.01)  # times of use differ
    second = cached("other", cache_key("a"), lambda folder: write("x" * 1000, folder))
    monkeypatch.setenv("PARROTFLOW_SHARD_CACHE_GB", "1.5e-6")

    drop_unused()

    assert (first.exists(), second.exists()) == (False, True)


def test_a_limit_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_SHARD_CACHE_GB", "much")

    with pytest.raises(UserError, match="PARROTFLOW_SHARD_CACHE_GB=much: expected a number of gigabytes"):
        drop_unused()


def test_only_what_is_not_known_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")
    computed: list[str] = []

    def compute(item: str, folder: Path) -> None:
        computed.append(item)
        write(item, folder)

    map_cached("toy", ["a", "b", "a"], cache_key, compute)
    entries = map_cached("toy", ["c", "b"], cache_key, compute)

    assert computed == ["a", "b", "c"]
    assert [(entry / "result").read_text() for entry in entries] == ["c", "b"]


def test_what_kills_have_left_half_written_goes_after_a_day() -> None:
    def die(folder: Path) -> None:
        write("half", folder)
        os.kill(os.getpid(), signal.SIGKILL)

    killed = get_context("fork").Process(target=cached, args=("toy", cache_key("a"), die))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    (left,) = (CACHE / "toy").glob("??/*")
    entry = cached("toy", cache_key("c"), lambda folder: write("whole", folder))

    drop_unused()  # another run may be writing it
    assert left.exists()
    os.utime(left, (0, 0))
    drop_unused()

    assert list((CACHE / "toy").glob("??/*")) == [entry]


def test_nothing_goes_while_another_process_uses_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = cached("toy", cache_key("a"), lambda folder: write("whole", folder))
    monkeypatch.setenv("PARROTFLOW_SHARD_CACHE_GB", "0")
    reader = (
        "from stages.runtime.cache import cache_folder, cache_key\n"
        "cache_folder('toy', cache_key('b'))\nprint('reading', flush=True)\ninput()"
    )
    command = [sys.executable, "-c", reader]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        drop_unused()
        assert entry.exists()
        process.communicate(b"\n")

    drop_unused()
    assert not entry.exists()
