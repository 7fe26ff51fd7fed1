"""Workers that die, that fail while the others wait for them, and that cannot save: how the run ends.

One that dies ends all, and the same command continues to the result of a calm run. So does one that fails on purpose:
on GPUs the others wait for it, and nothing would tell them. After a stop at which one process could not save, all say
so, so that the run does not report its state as saved.
"""

import errno
import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from stages.formats.model_folder import weights_sha256
from stages.runtime.entry import EXIT_TERMINATED, EXIT_UNAVAILABLE, EXIT_USER_ERROR
from stages.runtime.launch import ACCELERATE_LAUNCH, launch_config
from stages.runtime.supervision import VARIABLE, Supervision
from stages.train import launcher, worker
from stages.train.checkpoint import checkpoints
from tests.train.small_run import copy_of, environment, fork, run_workers, write_project

pytestmark = pytest.mark.acceptance


STEPS = {
    "max_steps": 200,
    "checkpoint_every_steps": 10,
    "evaluate_every_steps": 200,
    "deterministic_micro_batch_size": 4,
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nothing disturbed."""
    folder = write_project(tmp_path_factory.mktemp("reference"), **STEPS)
    run_workers(folder, 2)
    return folder


@pytest.fixture
def project(reference: Path, tmp_path: Path) -> Path:
    """The same inputs, nothing computed."""
    return copy_of(reference, tmp_path / "project")


def kill_a_worker(project: Path, process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Kill the second worker once a checkpoint stands. Returns all workers."""
    deadline = time.monotonic() + 300
    while not list((project / ".parrotflow/checkpoints").glob("*/step-00000010")):
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    family = psutil.Process(process.pid).children(recursive=True)
    workers = [child for child in family if child.cmdline()[-2:] == ["-m", "stages.train.worker"]]
    workers = [worker for worker in workers if ACCELERATE_LAUNCH not in worker.cmdline()]
    assert len(workers) == 2
    workers[1].send_signal(signal.SIGKILL)
    return workers


def test_after_the_death_of_one_of_two_workers_none_is_left_and_the_same_command_continues(
    reference: Path, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    process = fork(project, PARROTFLOW_LAUNCH="cpu_2")
    workers = kill_a_worker(project, process)
    said, _ = process.communicate(timeout=200)  # an exchange without the other would wait for longer
    assert process.returncode == EXIT_UNAVAILABLE, said
    assert said.splitlines()[-1] == (
        "error: train: a worker died; its messages are above (none if it was killed, as when memory runs out). The "
        "same command continues from the last checkpoint"
    )
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
    assert not (project / "model").exists()
    run_workers(project, 2)
    assert "continuing at step " in capfd.readouterr().out
    assert weights_sha256(project / "model") == weights_sha256(reference / "model")


@pytest.mark.parametrize(("waiting", "patience"), [("nccl", 1.0), ("gloo", launcher.AFTER_FAILURE_SECONDS)])
def test_workers_that_wait_for_one_that_failed_are_ended_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: str, patience: float
) -> None:
    project = write_project(tmp_path / "project")
    monkeypatch.setattr(launcher, "WORKER", "tests.train.one_fails")
    monkeypatch.setattr(launcher, "AFTER_FAILURE_SECONDS", patience)

    def command() -> None:
        os.chdir(project)
        os.environ.update(environment(PARROTFLOW_LAUNCH="cpu_2", WAITING=waiting))
        before = signal.getsignal(signal.SIGTERM)
        code = launcher.launch(launch_config())
        assert signal.getsignal(signal.SIGTERM) == before, "a signal after the workers asks nobody to stop"
        raise SystemExit(code)

    process = multiprocessing.get_context("fork").Process(target=command)
    process.start()
    process.join(timeout=120)
    assert process.exitcode == EXIT_USER_ERROR


def test_a_stop_before_the_first_step_ends_workers_that_wait_for_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write_project(tmp_path / "project")
    monkeypatch.setattr(launcher, "WORKER", "tests.train.never_begins")

    def command() -> None:
        os.chdir(project)
        os.environ.update(environment())
        raise SystemExit(launcher.launch(launch_config()))

    process = multiprocessing.get_context("fork").Process(target=command)
    process.start()
    while not (project / "waiting").exists():
        assert process.is_alive()
        time.sleep(0.05)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    process.join(timeout=120)
    assert process.exitcode == EXIT_TERMINATED


def test_by_default_all_have_ended_within_half_a_minute() -> None:
    assert launcher.AFTER_FAILURE_SECONDS + 5 < 30


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
