"""Workers that fail while the others wait for them, and that cannot save: how the run ends.

One that fails on purpose ends all: on GPUs the others wait for it, and nothing would tell them.
After a stop at which one process could not save, all say so, so that the run does not report its state as saved.
"""

import errno
import multiprocessing
import os
import signal
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from stages.runtime.errors import EXIT_TERMINATED, EXIT_USER_ERROR
from stages.runtime.launch import launch_config
from stages.runtime.section import read_section
from stages.runtime.supervision import VARIABLE, Supervision
from stages.train import launcher, worker
from stages.train.checkpoint import checkpoints
from stages.train.params import TrainParams
from tests.train.small_run import environment, run_workers, write_project
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance


def launched(project: Path, **variables: str) -> ForkProcess:
    """The launcher in a process of its own, with workers that get stuck."""

    def command() -> None:
        os.chdir(project)
        os.environ.update(environment(**variables))
        launcher.WORKER = "tests.train.stuck_worker"
        before = signal.getsignal(signal.SIGTERM)
        code = launcher.launch(launch_config(), read_section("train", TrainParams))
        assert signal.getsignal(signal.SIGTERM) == before, "after the workers a signal has its earlier handler"
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
    process.join()
    assert process.exitcode == EXIT_USER_ERROR


def test_a_stop_before_the_first_step_ends_workers_that_wait_for_one_another(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project")
    process = launched(project, WAITING="start")
    wait_until(lambda: (project / "waiting").exists() or not process.is_alive())
    process.terminate()
    process.join()
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
    launched = read_section("train", TrainParams, project / "params.yaml").model_dump_json()
    (command.folder / launcher.LAUNCHED_PARAMS).write_text(launched, encoding="utf-8")
    run_workers(project, 2, main_without_room, EXIT_TERMINATED, **{VARIABLE: str(command.folder)})
    command.close()
    said = capfd.readouterr().out
    assert "stopped on request, its last steps could not be saved; run the same command to continue" in said
    assert not list(project.glob(".parrotflow/checkpoints/*/step-*"))
