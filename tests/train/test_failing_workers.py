"""Workers that die, that fail while the others wait for them, and that cannot save: how the run ends.

One that dies ends all. So does one that fails on purpose: on GPUs the others wait for it, and nothing would tell them.
After a stop at which one process could not save, all say so, so that the run does not report its state as saved.
"""

import errno
import multiprocessing
import os
import signal
import time
from multiprocessing.context import ForkProcess
from pathlib import Path

import psutil
import pytest

from stages.runtime.entry import EXIT_TERMINATED, EXIT_UNAVAILABLE, EXIT_USER_ERROR
from stages.runtime.launch import ACCELERATE_LAUNCH, launch_config
from stages.runtime.supervision import VARIABLE, Supervision
from stages.train import launcher, worker
from stages.train.checkpoint import checkpoints
from tests.train.small_run import environment, fork, run_workers, write_project

pytestmark = pytest.mark.acceptance


def test_after_the_death_of_one_of_two_workers_none_is_left(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", max_steps=10_000, checkpoint_every_steps=10)
    process, deadline = fork(project, PARROTFLOW_LAUNCH="cpu_2"), time.monotonic() + 300
    while not list((project / ".parrotflow/checkpoints").glob("*/step-00000010")):
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    family = psutil.Process(process.pid).children(recursive=True)
    workers = [child for child in family if child.cmdline()[-2:] == ["-m", "stages.train.worker"]]
    workers = [worker for worker in workers if ACCELERATE_LAUNCH not in worker.cmdline()]
    assert len(workers) == 2
    workers[1].kill()

    said, _ = process.communicate(timeout=200)  # an exchange without the other would wait for longer

    assert process.returncode == EXIT_UNAVAILABLE, said
    assert said.splitlines()[-1] == (
        "error: train: a worker died; its messages are above (none if it was killed, as when memory runs out). The "
        "same command continues from the last checkpoint"
    )
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
    assert not (project / "model").exists()


def launched(project: Path, **variables: str) -> ForkProcess:
    """The launcher in a process of its own, with workers that get stuck."""

    def command() -> None:
        os.chdir(project)
        os.environ.update(environment(**variables))
        launcher.WORKER = "tests.train.stuck_worker"
        before = signal.getsignal(signal.SIGTERM)
        code = launcher.launch(launch_config())
        assert signal.getsignal(signal.SIGTERM) == before, "a signal after the workers asks nobody to stop"
        raise SystemExit(code)

    process = multiprocessing.get_context("fork").Process(target=command)
    process.start()
    return process


@pytest.mark.parametrize(("waiting", "patience"), [("nccl", 1.0), ("gloo", launcher.AFTER_FAILURE_SECONDS)])
def test_workers_that_wait_for_one_that_failed_are_ended_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: str, patience: float
) -> None:
    monkeypatch.setattr(launcher, "AFTER_FAILURE_SECONDS", patience)
    process = launched(write_project(tmp_path / "project"), PARROTFLOW_LAUNCH="cpu_2", WAITING=waiting)
    process.join(timeout=120)
    assert process.exitcode == EXIT_USER_ERROR


def test_a_stop_before_the_first_step_ends_workers_that_wait_for_one_another(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project")
    process = launched(project, WAITING="start")
    while not (project / "waiting").exists():
        assert process.is_alive()
        time.sleep(0.05)
    process.terminate()
    process.join(timeout=120)
    assert process.exitcode == EXIT_TERMINATED


def main_without_room() -> None:
    """The worker, where the main process finds its disk full when it completes a checkpoint."""

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if os.environ["RANK"] == "0":
        checkpoints.write_manifest = full
    worker.main()


def test_where_one_of_two_processes_could_not_save_both_end_with_the_code_for_that(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    project = write_project(tmp_path / "project")
    command = Supervision()
    command.ask_to_stop()
    run_workers(project, 2, main_without_room, EXIT_TERMINATED, **{VARIABLE: str(command.folder)})
    command.close()
    said = capfd.readouterr().out
    assert "stopped on request, its last steps could not be saved; the same command continues" in said
    assert not list(project.glob(".parrotflow/checkpoints/*/step-*"))
