"""DVC that is imported before it is needed does what DVC does, holds the lock as it would, and is never left behind."""

import os
import signal
import time
from pathlib import Path

import pytest

from flows.run.process import repro_arguments
from flows.run.run_lock import run_lock
from flows.run.warm_dvc import Process, WarmDvc
from stages.runtime.entry import UserError
from tests.flows.toy import make_toy

SLOW = "stages:\n  slow: {cmd: sleep 600, outs: [slow.txt]}\n"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(make_toy(tmp_path / "toy"))
    return tmp_path / "toy"


def ready(warm: WarmDvc, count: int) -> list[Process]:
    warm.keep_ready(count)
    return [waiting.process for waiting in warm._ready]


def test_it_is_dvc(toy: Path) -> None:
    warm = WarmDvc()
    (process,) = ready(warm, 1)

    used = warm.start(repro_arguments("first"))
    said = used.communicate()[0].decode()

    assert used is process
    assert used.returncode == 0
    assert "Running stage 'first'" in said
    assert (toy / "first.txt").exists()


def test_what_dvc_refuses_it_refuses_with_the_same_code(toy: Path) -> None:
    warm = WarmDvc()
    warm.keep_ready(1)
    outcomes = []
    for _ in range(2):
        process = warm.start(repro_arguments("no-such-stage"))
        outcomes.append((process.communicate()[0], process.returncode))

    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1] != 0


def test_a_warm_one_that_was_killed_is_replaced(toy: Path) -> None:
    warm = WarmDvc()
    (process,) = ready(warm, 1)
    process.kill()
    process.wait()

    used = warm.start(repro_arguments("first"))

    assert used.communicate()[0]
    assert used.returncode == 0


def test_those_that_were_not_needed_leave(toy: Path) -> None:
    warm = WarmDvc()
    processes = ready(warm, 2)

    warm.close()

    assert [process.returncode for process in processes] == [0, 0]


def test_the_lock_goes_to_those_that_work_and_not_to_those_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_toy(tmp_path / "toy", SLOW))
    warm = WarmDvc()
    with run_lock("first"):
        ready(warm, 2)
        working = warm.start(repro_arguments("slow"))
        assert working.stdout is not None
        while b"Running stage" not in working.stdout.readline():
            assert working.poll() is None
    with pytest.raises(UserError, match="works in this folder"), run_lock("second"):
        pass

    # The whole group: its command may be starting this very moment.
    os.killpg(working.pid, signal.SIGKILL)
    working.communicate()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            with run_lock("third"):
                break
        except UserError:
            time.sleep(0.1)
    else:
        pytest.fail("the lock is held by a process that does no work")
    warm.close()
