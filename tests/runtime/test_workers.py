import os
import signal
import threading
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest

from stages.runtime import workers
from stages.runtime.cache import map_cached
from stages.runtime.errors import UnavailableError, UserError
from stages.runtime.workers import Progress, counted, map_shards
from tests.waiting import wait_until, wait_until_ended


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def refuse(number: int) -> int:
    if number == 3:
        raise UserError("shard 3 is damaged")
    return number


@pytest.mark.parametrize("workers", ["1", "2"])
def test_results_come_in_the_order_of_the_items(monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    monkeypatch.setenv("PARROTFLOW_WORKERS", workers)
    monkeypatch.setattr("stages.runtime.workers.POOL_START_SECONDS", 0.0)

    results = list(map_shards(square, range(8)))

    assert [result for result, _ in results] == [number * number for number in range(8)]
    assert (os.getpid() in {process for _, process in results}) == (workers == "1")


@pytest.mark.parametrize(("workers", "threads_each"), [("1", 1), ("2", 1), ("2", 4)])
def test_an_error_in_a_worker_is_raised_here_as_it_was_there(
    monkeypatch: pytest.MonkeyPatch, workers: str, threads_each: int
) -> None:
    monkeypatch.setenv("PARROTFLOW_WORKERS", workers)
    monkeypatch.setattr("stages.runtime.workers.POOL_START_SECONDS", 0.0)

    with pytest.raises(UserError, match="shard 3 is damaged"):
        list(map_shards(refuse, range(8), threads_each))


def test_workers_are_kept_from_one_map_to_the_next_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_WORKERS", "2")
    monkeypatch.setattr("stages.runtime.workers.POOL_START_SECONDS", 0.0)
    here = {process for _ in range(6) for _, process in map_shards(square, [3])}
    monkeypatch.chdir(tmp_path)
    elsewhere = {process for _, process in map_shards(square, [3])}

    assert len(here) <= 2
    assert not here & elsewhere


def test_a_fork_never_waits_for_a_lock_of_its_parents_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_WORKERS", "2")
    monkeypatch.setattr("stages.runtime.workers.POOL_START_SECONDS", 0.0)
    list(map_shards(square, [3]))
    child = get_context("fork").Process(target=str)

    with workers._processes(2)._shutdown_lock:  # as the pool's own thread may at any time
        child.start()
    child.join(60)

    if child.exitcode is None:
        child.kill()
        pytest.fail("the fork waits for ever")
    assert child.exitcode == 0


def end_at_once(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class BreakingPool:
    """A pool as it is for a moment when a worker dies while another is being started."""

    def submit(self, *_: object) -> None:
        raise OSError("handle is closed")


@pytest.mark.parametrize("in_submit", [False, True])
def test_after_a_worker_was_killed_a_retry_may_help_and_the_next_map_has_new_ones(
    monkeypatch: pytest.MonkeyPatch, in_submit: bool
) -> None:
    monkeypatch.setenv("PARROTFLOW_WORKERS", "2")
    monkeypatch.setattr("stages.runtime.workers.POOL_START_SECONDS", 0.0)
    if in_submit:
        monkeypatch.setitem(workers._pools, (os.getpid(), 2, Path.cwd()), BreakingPool())
    with pytest.raises(UnavailableError, match=r"^a worker process was killed .*; run the same command to continue$"):
        list(map_shards(end_at_once, range(8)))

    assert [result for result, _ in map_shards(square, range(8))] == [number * number for number in range(8)]


def stay(number: int) -> None:
    Path(f"{os.getpid()}.worker").touch()
    threading.Event().wait()


def map_for_ever(folder: Path) -> None:
    os.chdir(folder)
    os.environ["PARROTFLOW_WORKERS"] = "2"
    workers.POOL_START_SECONDS = 0.0
    list(map_shards(stay, range(4)))


def test_workers_end_with_their_parent_however_it_ends(tmp_path: Path) -> None:
    parent = get_context("fork").Process(target=map_for_ever, args=(tmp_path,))
    parent.start()
    wait_until(lambda: len(list(tmp_path.glob("*.worker"))) == 2)
    started = [psutil.Process(int(path.stem)) for path in tmp_path.glob("*.worker")]

    parent.kill()

    wait_until_ended(started)


def test_calls_that_keep_all_cores_busy_overlap_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_WORKERS", "2")
    both = threading.Barrier(2)

    def meet(number: int) -> int:
        both.wait(500)  # less than pytest's limit, which does not end threads
        return number

    assert list(map_shards(meet, range(4), threads_each=4)) == [0, 1, 2, 3]


def slowly(number: int) -> int:
    time.sleep(0.2)
    return os.getpid()


@pytest.mark.parametrize(("items", "here"), [(2, True), (20, False)])
def test_workers_start_only_for_more_than_their_start_takes(
    monkeypatch: pytest.MonkeyPatch, items: int, here: bool
) -> None:
    """After an edit one or two shards are new, and the last one cannot be shared."""
    monkeypatch.setenv("PARROTFLOW_WORKERS", "2")
    monkeypatch.setattr("stages.runtime.workers.POOL_START_SECONDS", 0.1)

    processes = list(map_shards(slowly, range(items)))

    assert processes[0] == os.getpid()
    assert (set(processes) == {os.getpid()}) == here


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, seconds; each look at it lets four pass."""
    now = [0.0]

    def tick() -> float:
        now[0] += 4.0
        return now[0]

    monkeypatch.setattr(workers.time, "monotonic", tick)
    return now


def test_a_line_is_printed_every_ten_seconds_with_what_is_left(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(counted(range(7), "features", "shards", total=7)) == list(range(7))

    assert capsys.readouterr().out.splitlines() == [
        "features: 3 of 7 shards, 12 s, about 16 s left",
        "features: 6 of 7 shards, 24 s, about 4 s left",
    ]


def test_work_of_unknown_size_says_what_is_done(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    collecting = Progress("collect", "documents")
    for number in range(3):
        collecting.advance(partial("{} MB".format, number))

    assert capsys.readouterr().out == "collect: 3 documents, 2 MB, 12 s\n"


def test_the_shards_that_the_cache_does_not_know_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")
    map_cached("short", ["a"], str, lambda item, folder: None)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(workers, "LINE_SECONDS", 0.0)

    def write(item: str, folder: Path) -> None:
        (folder / "result").write_text(item)

    map_cached("toy", ["a"], str, write)
    map_cached("toy", ["a", "b", "c"], str, write)

    lines = [line.partition(", ")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["toy: 1 of 1 shards", "toy: 1 of 2 shards", "toy: 2 of 2 shards"]
