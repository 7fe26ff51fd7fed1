"""Work that threads or processes share: this changes nothing of what comes out, and one that fails ends all."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import cast

import psutil
import pytest
import torch

from stages.evaluate import side_by_side
from stages.evaluate.__main__ import main
from stages.evaluate.model import open_model
from stages.evaluate.side_by_side import (
    PROCESSES_VARIABLE,
    cores_each,
    merge_side_by_side,
    next_of,
    run_in_processes,
    twin,
)
from stages.runtime.entry import UnavailableError, UserError
from tests.evaluate.likelihood.test_documents import write_jsonl
from tests.small_project import ROOT, folder_bytes, function_text
from tests.trained_project import write_sections


def test_each_piece_of_shared_work_is_done_once() -> None:
    waiting = deque(range(200))

    def work(own: int) -> Iterator[tuple[int, int]]:
        while (piece := next_of(waiting)) is not None:
            time.sleep(0.0001)
            yield own, piece

    done = list(merge_side_by_side([work(own) for own in range(3)]))

    assert sorted(piece for _, piece in done) == list(range(200))
    assert {own for own, _ in done} == {0, 1, 2}


def count_to(number: int, stopped: list[int], error_at: int | None = None) -> Iterator[int | None]:
    try:
        for value in range(number):
            yield value if value % 2 else None
            time.sleep(0.001)
            if value == error_at:
                raise OSError("disk")
    finally:
        stopped.append(number)


@pytest.mark.parametrize("threads", [1, 3])
def test_what_all_sources_yield_comes_once_without_their_pauses(threads: int) -> None:
    stopped: list[int] = []

    found = list(merge_side_by_side([count_to(20, stopped) for _ in range(threads)]))

    assert sorted(found) == sorted(list(range(1, 20, 2)) * threads)
    assert stopped == [20] * threads


def test_an_error_in_one_source_ends_all_and_is_raised() -> None:
    stopped: list[int] = []

    with pytest.raises(OSError, match="disk"):
        list(merge_side_by_side([count_to(10, stopped, error_at=4), count_to(1_000_000, stopped)]))

    assert stopped in ([10], [10, 1_000_000])


def test_a_consumer_that_stops_ends_all_sources_at_their_next_pause() -> None:
    before = threading.active_count()
    results = merge_side_by_side([count_to(1_000_000, []), count_to(1_000_000, [])])
    next(results)

    results.close()

    assert threading.active_count() == before


def test_products_take_the_given_cores_within_also_in_new_threads_and_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    with cores_each(1):
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        seen.append(torch.get_num_threads())

    assert seen == [1, 1]
    assert torch.get_num_threads() == before


def test_a_twin_has_the_same_weights_and_modules_of_its_own(project: Path) -> None:
    model = open_model(project / "model")

    other = twin(model)

    own, others = dict(model.named_parameters()), dict(other.named_parameters())
    assert own.keys() == others.keys()
    assert all(others[name] is parameter for name, parameter in own.items())
    assert other.get_input_embeddings().weight is other.get_output_embeddings().weight
    assert not {id(module) for module in model.modules()} & {id(module) for module in other.modules()}


def results(project: Path) -> dict[str, bytes]:
    return {
        name: content
        for name, content in folder_bytes(project).items()
        if name.startswith(("reports/evaluate", "reports/loss_by_position", "data/document_losses"))
    }


def test_two_processes_give_the_same_bytes_as_one(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(project / "more.jsonl", {"text": function_text(50)})
    write_sections(project, evaluate__sets={"more": "more.jsonl"})
    main()
    alone = results(project)
    monkeypatch.setenv(PROCESSES_VARIABLE, "2")

    main()

    assert len(alone) == 5
    assert results(project) == alone


def write_rank(folder: Path, rank: int, processes: int) -> None:
    (folder / str(rank)).write_text(f"{processes} {os.getpid()}")


def test_each_process_has_a_rank_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROCESSES_VARIABLE, "2")

    run_in_processes(partial(write_rank, tmp_path))

    found = [(tmp_path / name).read_text().split() for name in ("0", "1")]
    assert [processes for processes, _ in found] == ["2", "2"]
    assert len({own for _, own in found} | {str(os.getpid())}) == 3


def fail_or_sleep(failure: BaseException | int, rank: int, _: int) -> None:
    if rank == 0:
        time.sleep(600)
    elif isinstance(failure, int):
        os._exit(failure)
    raise failure  # type: ignore[misc]


@pytest.mark.parametrize(
    ("failure", "expected", "message"),
    [
        (UnavailableError("the Hub does not answer"), UnavailableError, "^the Hub does not answer$"),
        (OSError(errno.ENOSPC, "No space left on device", "file"), OSError, "No space left on device: 'file'"),
        (ZeroDivisionError("a fault of the code"), UserError, "a worker died with exit code 1; its messages are above"),
        (9, UserError, "a worker died with exit code 9; .* PARROTFLOW_EVALUATE_PROCESSES=1 works in one process"),
    ],
)
def test_a_process_that_fails_ends_all_with_its_error(
    failure: BaseException | int, expected: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROCESSES_VARIABLE, "2")
    before = psutil.Process().children()  # such as the workers that a stage keeps, of an earlier test in this process

    with pytest.raises(expected, match=message):
        run_in_processes(partial(fail_or_sleep, failure))

    started = set(psutil.Process().children()) - set(before)
    assert [
        one for one in started if one.status() != psutil.STATUS_ZOMBIE and "spawn_main" in " ".join(one.cmdline())
    ] == []


def test_a_failure_that_is_seen_late_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # A process closes its files before the system has its exit code: the first look may come between the two.
    monkeypatch.setenv(PROCESSES_VARIABLE, "2")
    look = side_by_side.SpawnProcess.exitcode
    unseen: list[side_by_side.SpawnProcess] = []

    def wait_and_look_away(sentinels: list[int]) -> None:
        if not unseen:
            unseen.extend(cast("list[side_by_side.SpawnProcess]", multiprocessing.active_children()))
        connection.wait(sentinels)

    def late(process: side_by_side.SpawnProcess) -> int | None:
        if process in unseen:
            unseen.remove(process)
            return None
        return cast("int | None", look.__get__(process))

    monkeypatch.setattr(side_by_side, "wait", wait_and_look_away)
    monkeypatch.setattr(side_by_side.SpawnProcess, "exitcode", property(late))

    with pytest.raises(UnavailableError, match="the Hub does not answer"):
        run_in_processes(partial(fail_or_sleep, UnavailableError("the Hub does not answer")))


def sleep(_: int, __: int) -> None:
    time.sleep(600)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_processes_end_with_the_command_however_it_ends(end: signal.Signals) -> None:
    program = (
        "from stages.evaluate.side_by_side import run_in_processes; from stages.runtime.entry import run_stage\n"
        "from tests.evaluate.test_side_by_side import sleep; run_stage(lambda: run_in_processes(sleep))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), PROCESSES_VARIABLE: "2"}
    # Programs that a shell starts in the background ignore Ctrl-C.
    command = subprocess.Popen(["env", "--default-signal=INT", sys.executable, "-c", program], env=environment)
    workers: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while len(workers) < 3:  # and the process that counts their shared resources
        assert time.monotonic() < deadline
        time.sleep(0.1)
        workers = psutil.Process(command.pid).children(recursive=True)
    time.sleep(1)

    command.send_signal(end)

    assert command.wait(timeout=60) != 0
    assert psutil.wait_procs(workers, timeout=60)[1] == []
