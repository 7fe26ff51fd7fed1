import fcntl
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from stages.runtime.cache import (
    CACHE,
    SUMS,
    ResultLog,
    cache_key,
    cached,
    drop_unused,
    find_cached,
    keep_entries,
    map_cached,
    map_cached_parts,
)
from stages.runtime.entry import UserError


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, folder: Path) -> None:
    (folder / "result").write_text(text)


def test_what_is_known_is_not_computed_again() -> None:
    first = cached("toy", cache_key("a"), lambda folder: write("first", folder))
    second = cached("toy", cache_key("a"), lambda folder: write("second", folder))

    assert first == second
    assert (second / "result").read_text() == "first"


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing", "sums cut"])
def test_a_damaged_entry_is_computed_again(damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = cached("toy", cache_key("a"), lambda folder: write("right", folder)) / "result"
    if damage == "missing":
        result.unlink()
    elif damage == "sums cut":
        (result.parent / SUMS).write_text("{")
    else:
        result.write_text({"flipped": "rjght", "cut": "ri"}[damage])

    assert (cached("toy", cache_key("a"), lambda folder: write("right", folder)) / "result").read_text() == "right"
    map_cached("toy", ["a"], cache_key, lambda item, folder: write("right", folder))
    assert capsys.readouterr().out.count("damaged") == 1


def test_files_in_folders_of_an_entry_are_compared_too() -> None:
    def nested(folder: Path) -> None:
        (folder / "more").mkdir()
        write("right", folder / "more")

    (cached("toy", cache_key("a"), nested) / "more" / "result").write_text("wrong")

    assert (cached("toy", cache_key("a"), nested) / "more" / "result").read_text() == "right"


def test_parts_of_an_item_are_computed_in_one_pass_and_only_those_that_are_not_known() -> None:
    passes: list[tuple[str, list[str]]] = []

    def compute(item: str, names: Sequence[str]) -> dict[str, Callable[[Path], None]]:
        passes.append((item, list(names)))
        return {name: partial(write, f"{name} of {item}") for name in names}

    def texts(*names: str, items: str = "ab") -> list[list[str]]:
        entries = map_cached_parts("toy", list(items), cache_key, dict.fromkeys(names, write), compute)
        return [[(of_item[name] / "result").read_text() for name in names] for of_item in entries]

    assert texts("x", "y") == [["x of a", "y of a"], ["x of b", "y of b"]]
    assert texts("y", "z", items="abc") == [[f"{name} of {item}" for name in "yz"] for item in "abc"]
    assert passes == [("a", ["x", "y"]), ("b", ["x", "y"]), ("a", ["z"]), ("b", ["z"]), ("c", ["y", "z"])]


def test_an_entry_is_found_or_not_and_nothing_is_computed() -> None:
    def never(folder: Path) -> None:
        raise AssertionError(folder)

    assert find_cached("toy", cache_key("a"), never) is None
    entry = cached("toy", cache_key("a"), partial(write, "kept"))

    assert find_cached("toy", cache_key("a"), write) == entry


def test_a_failure_leaves_no_entry() -> None:
    def fail(folder: Path) -> None:
        write("half", folder)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cached("toy", cache_key("a"), fail)

    assert [path for path in CACHE.rglob("*") if path.is_file()] == []
    assert (cached("toy", cache_key("a"), lambda folder: write("whole", folder)) / "result").read_text() == "whole"


def test_two_that_compute_the_same_at_once_both_succeed() -> None:
    def meanwhile_another_finishes(folder: Path) -> None:
        entry = folder.with_name(folder.name.split(".")[1])
        entry.mkdir(parents=True)
        write("same", entry)
        write("same", folder)

    entry = cached("toy", cache_key("a"), meanwhile_another_finishes)

    assert (entry / "result").read_text() == "same"
    assert sorted(path.name for path in entry.parent.iterdir()) == [entry.name]


def test_keys_differ_wherever_the_parts_differ() -> None:
    assert len({cache_key("ab", "c"), cache_key("a", "bc"), cache_key("abc"), cache_key("abc", "")}) == 4


def test_the_same_data_is_computed_again_after_an_edit_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "limits.py"
    compute = "def compute(folder):\n    (folder / 'result').write_text(str(LIMIT))\n"
    read = "from limits import compute\nfrom stages.runtime.cache import cached\n"
    read += "print((cached('toy', 'the same data', compute) / 'result').read_text())"
    found = []
    for limit, remark in ((1, ""), (2, ""), (2, "# a remark\n")):
        module.write_text(f"LIMIT = {limit}\n{remark}{compute}")
        path = f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"
        command = [sys.executable, "-c", read]
        found.append(subprocess.check_output(command, env=os.environ | {"PYTHONPATH": path}, text=True).strip())

    assert found == ["1", "2", "2"]
    assert len(list((CACHE / "toy").glob("??/*"))) == 2


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
        drop_unused("toy")
    assert computed[:5] == [0, 1, 2, 3, 4]
    assert computed[5:] == [0, 1, 0, 1]


def test_a_limit_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_SHARD_CACHE_GB", "much")

    with pytest.raises(UserError, match="PARROTFLOW_SHARD_CACHE_GB=much: expected a number of gigabytes"):
        drop_unused("toy")


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


def test_what_was_unused_for_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [cached("toy", cache_key(str(number)), lambda folder: write("x" * 100, folder)) for number in range(3)]
    for number, entry in enumerate(entries):
        os.utime(entry, (number, number))
    monkeypatch.setenv("PARROTFLOW_SHARD_CACHE_GB", str(450 / 1e9))

    drop_unused("toy")

    kept = {path.name for path in (CACHE / "toy").glob("??/*")}
    assert kept == {entry.name for entry in entries[1:]}


def test_what_kills_have_left_half_written_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(folder: Path) -> None:
        write("half", folder)
        os.kill(os.getpid(), signal.SIGKILL)

    killed = get_context("fork").Process(target=cached, args=("toy", cache_key("a"), die))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    (left,) = (CACHE / "toy").glob("??/*")
    of_an_earlier_version = left.with_name(f"{cache_key('b')}.{2**22}")
    of_an_earlier_version.mkdir()
    write("whole, without its name", of_an_earlier_version)
    entry = cached("toy", cache_key("c"), lambda folder: write("whole", folder))

    drop_unused("toy")

    assert list((CACHE / "toy").glob("??/*")) == [entry]


def test_what_a_kill_has_left_of_an_entry_is_removed_when_it_is_computed_again() -> None:
    entry = cached("toy", cache_key("a"), lambda folder: write("whole", folder))
    shutil.rmtree(entry)
    left = entry.with_name(f".{entry.name}.1.partial")
    left.mkdir()
    (left / "result").write_text("half")

    cached("toy", cache_key("a"), lambda folder: write("whole", folder))

    assert [path.name for path in entry.parent.iterdir()] == [entry.name]


def test_what_another_process_is_writing_stays() -> None:
    def write_meanwhile(folder: Path) -> None:
        write("whole", folder)
        drop_unused("toy")

    assert (cached("toy", cache_key("a"), write_meanwhile) / "result").read_text() == "whole"


def test_a_writer_waits_while_what_an_earlier_process_of_its_number_has_left_is_removed() -> None:
    entry = cached("toy", cache_key("a"), lambda folder: write("whole", folder))
    left = entry.with_name(f".{entry.name}.{os.getpid()}.partial")
    entry.rename(left)
    lock = os.open(left, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def remove() -> None:
        shutil.rmtree(left)
        os.close(lock)

    Timer(0.2, remove).start()

    assert (cached("toy", cache_key("a"), lambda folder: write("again", folder)) / "result").read_text() == "again"


def test_a_kill_while_an_entry_is_evicted_leaves_no_half_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_many(folder: Path) -> None:
        for number in range(3):
            (folder / str(number)).write_text("x")

    entry = cached("toy", cache_key("a"), write_many)
    monkeypatch.setenv("PARROTFLOW_SHARD_CACHE_GB", "0")
    unlink, unlinked = os.unlink, 0

    def killed_at_the_second(*arguments: Any, **options: Any) -> None:
        nonlocal unlinked
        unlinked += 1
        if unlinked == 2:
            raise KeyboardInterrupt
        unlink(*arguments, **options)

    with monkeypatch.context() as dying:
        dying.setattr(os, "unlink", killed_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            drop_unused("toy")

    assert not entry.exists()
    assert sorted(path.name for path in cached("toy", cache_key("a"), write_many).glob("?")) == ["0", "1", "2"]
    drop_unused("toy")
    assert list((CACHE / "toy").glob("??/*")) == []


def append_many(name: str) -> None:
    log = ResultLog("toy", cache_key("a"))
    for number in range(200):
        log.append(f"{name}{number}", [name * 50, number])


def test_a_log_keeps_what_several_processes_append() -> None:
    with get_context("fork").Pool(2) as pool:
        pool.map(append_many, ["x", "y"])

    results = ResultLog("toy", cache_key("a")).read()

    assert results == {f"{name}{number}": [name * 50, number] for name in "xy" for number in range(200)}
    assert ResultLog("toy", cache_key("b")).read() == {}


def test_what_a_kill_has_left_of_an_eviction_does_not_hinder_the_next_one() -> None:
    entry = cached("toy", cache_key("a"), lambda folder: write("right", folder))
    evicted = entry.with_name(f"{entry.name}.evicted.partial")
    evicted.mkdir()
    (evicted / "half").touch()
    (entry / "result").write_text("rjght")

    cached("toy", cache_key("a"), lambda folder: write("right", folder))
    assert [path.name for path in entry.parent.iterdir()] == [entry.name]


@pytest.mark.parametrize("damage", ["cut", "flipped", "of an earlier version"])
def test_a_result_that_is_damaged_or_half_written_is_left_out_and_may_be_appended_again(damage: str) -> None:
    log = ResultLog("toy", cache_key("a"))
    for name in ("first", "second", "third"):
        log.append(name, {"value": math.nan if name == "first" else name})
    content = log.file.read_bytes()
    log.file.write_bytes(
        {
            "cut": content[:-4],
            "flipped": content.replace(b'"value": "third"', b'"value": "thirt"'),
            "of an earlier version": content[: content.rindex(b"\n")] + b'\n["third", "passed", ""]',
        }[damage]
    )

    assert log.read().keys() == {"first", "second"}
    log.append("third", "again")
    assert log.read()["third"] == "again"
    assert math.isnan(log.read()["first"]["value"])


def test_the_last_result_of_a_name_counts_and_a_log_can_be_replaced() -> None:
    log = ResultLog("toy", cache_key("a"))
    for number in range(3):
        log.append("same", number)
    assert log.read() == {"same": 2}

    log.replace({"other": 1, "more": 2})

    assert log.read() == {"other": 1, "more": 2}


def test_logs_count_for_the_limit_and_all_but_one_may_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = [ResultLog("toy", cache_key(str(number))) for number in range(3)]
    for number, log in enumerate(logs):
        log.append("x", "x" * 100)
        os.utime(log.folder, (number, number))
    logs[0].read()
    monkeypatch.setenv("PARROTFLOW_SHARD_CACHE_GB", str(300 / 1e9))

    drop_unused("toy")
    assert [log.folder.exists() for log in logs] == [True, False, True]
    keep_entries("toy", [logs[2].folder])
    assert [log.folder.exists() for log in logs] == [False, False, True]
    keep_entries("toy", [])
    assert list((CACHE / "toy").glob("*/*")) == []
