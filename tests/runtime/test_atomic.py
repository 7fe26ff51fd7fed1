import random
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from stages.runtime import atomic
from stages.runtime.atomic import atomic_folder, atomic_write
from stages.runtime.entry import UserError
from tests.small_project import ROOT


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    place = tmp_path / "out"

    with atomic_folder(place) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("content")
        assert not place.exists()

    assert (place / "deep" / "file").read_text() == "content"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def write_half_and_fail(place: Path) -> None:
    with atomic_folder(place) as folder:
        (folder / "half").write_text("written")
        raise RuntimeError


def test_a_failure_leaves_the_previous_folder_as_it_was(tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.mkdir()
    (place / "previous").write_text("result")

    with pytest.raises(RuntimeError):
        write_half_and_fail(place)

    assert (place / "previous").read_text() == "result"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_a_kill_left_behind_is_not_taken_over(tmp_path: Path) -> None:
    left_behind = tmp_path / ".out.partial"
    left_behind.mkdir()
    (left_behind / "stale").write_text("half")

    with atomic_folder(tmp_path / "out") as folder:
        (folder / "fresh").write_text("whole")

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["fresh"]


def test_two_runs_at_once_do_not_mix_the_second_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "out"

    with atomic_folder(place) as folder:
        (folder / "first").write_text("run")
        with pytest.raises(UserError, match=r"\.out\.partial: another run is writing here; wait for it to end"):
            write_half_and_fail(place)

    assert [path.name for path in place.iterdir()] == ["first"]


def write_many_times(place: Path, name: str) -> Counter[str]:
    """How often the folder was one's own, shared with another run (never), or refused."""
    outcomes: Counter[str] = Counter()
    for _ in range(200):
        try:
            with atomic_folder(place) as folder:
                (folder / name).write_text("mine")
                time.sleep(0.0005)
                found = [path.name for path in folder.iterdir()]
                outcomes["alone" if found == [name] else "shared"] += 1
        except UserError:
            outcomes["refused"] += 1
            time.sleep(0.0002)
    return outcomes


def test_however_many_runs_begin_at_the_same_instant_each_is_alone_or_refused(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        outcomes = sum(pool.map(partial(write_many_times, tmp_path / "out"), "abcd"), Counter())

    assert set(outcomes) == {"alone", "refused"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


REPLACES_A_FOLDER = """
from pathlib import Path
from stages.runtime.atomic import atomic_folder
with atomic_folder(Path("out")) as folder:
    (folder / "new").touch()
    print("about to replace", flush=True)
"""


def test_a_kill_at_any_instant_leaves_the_old_folder_or_the_new_one(tmp_path: Path) -> None:
    draw = random.Random(0)
    for number in range(8):
        place = tmp_path / str(number) / "out"
        place.mkdir(parents=True)
        for name in range(5000):
            (place / str(name)).touch()
        command = [sys.executable, "-c", REPLACES_A_FOLDER]
        writer = subprocess.Popen(command, cwd=place.parent, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(draw.random() / 50)
        writer.kill()
        writer.communicate()
        assert len(list(place.iterdir())) in (1, 5000)
        with atomic_folder(place) as folder:
            (folder / "next").touch()
        assert [path.name for path in place.parent.iterdir()] == ["out"]  # nothing of the kill is left


def test_a_reader_finds_the_old_folder_or_the_new_one_at_every_instant(tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.mkdir()
    writing = True
    missed = 0

    def read() -> None:
        nonlocal missed
        while writing:
            missed += not place.is_dir()

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(300):
        with atomic_folder(place) as folder:
            (folder / "number").write_text(str(number))
    writing = False
    reader.join()

    assert missed == 0
    assert (place / "number").read_text() == "299"


def test_a_folder_is_replaced_where_the_system_cannot_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "_exchange", lambda left, right: False)
    for number in range(2):
        with atomic_folder(tmp_path / "out") as folder:
            (folder / str(number)).touch()

    assert [path.name for path in tmp_path.rglob("*")] == ["out", "1"]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    place = tmp_path / "reports" / "metrics.json"

    atomic_write(place, "old")
    atomic_write(place, "né\n")

    assert place.read_bytes() == "né\n".encode()
    assert [path.name for path in place.parent.iterdir()] == ["metrics.json"]


def test_a_file_that_could_not_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("old")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            atomic_write(tmp_path / "report.json", "new" * 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"report.json": "old"}


WRITES_A_FILE = """
import sys
from pathlib import Path
from stages.runtime.atomic import atomic_write
for _ in range(300):
    atomic_write(Path("report.json"), sys.argv[1] * 1000)
"""


def test_of_two_runs_that_write_the_same_file_at_once_one_stays_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITES_A_FILE]
    writers = [subprocess.Popen([*command, text], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}) for text in "ab"]

    assert [writer.wait() for writer in writers] == [0, 0]
    assert (tmp_path / "report.json").read_text() in ("a" * 1000, "b" * 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
