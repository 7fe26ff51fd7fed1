"""Whatever ends a run, the same command continues and ends with the same weights."""

import re
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from stages.formats.model_folder import weights_sha256
from stages.formats.reports import read_json
from stages.formats.revision.execution import TRAIN_EXECUTION, Execution
from stages.runtime.errors import EXIT_CONTINUE, EXIT_UNAVAILABLE
from stages.runtime.launch import ACCELERATE_LAUNCH
from tests.train.small_run import copy_of, fork, run, run_workers, write_project
from tests.waiting import wait_until, wait_until_ended

pytestmark = pytest.mark.acceptance


STEPS = {
    "max_steps": 200,
    "checkpoint_every_steps": 10,
    "log_every_steps": 5,
    "evaluate_every_steps": 100,
    "deterministic_micro_batch_size": 4,
}


CHECKPOINTS = ".parrotflow/checkpoints/*/step-*"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    folder = write_project(tmp_path_factory.mktemp("reference"), **STEPS)
    run_workers(folder, 1)
    return folder


@pytest.fixture
def project(reference: Path, tmp_path: Path) -> Path:
    """The same inputs, nothing computed."""
    return copy_of(reference, tmp_path / "project")


def outs(folder: Path) -> dict[str, bytes]:
    """Every file that DVC takes from a run."""
    files = [path for part in ("model", "reports/curves") for path in (folder / part).rglob("*") if path.is_file()]
    files.append(folder / "reports/train.json")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def wait_for(folder: Path, pattern: str, process: "subprocess.Popen[str]") -> None:
    """Wait until a checkpoint folder has something of that name."""
    while not list((folder / ".parrotflow/checkpoints").glob(f"*/{pattern}")):
        assert process.poll() is None, f"the run ended too early: {process.communicate()[0]}"
        time.sleep(0.002)


def family(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """The command, its launcher and its workers."""
    command = psutil.Process(process.pid)
    return [command, *command.children(recursive=True)]


def whole_family(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """The same once a worker has started, else nothing."""
    members = family(process)
    return members if len(members) >= 3 else []


def test_after_each_of_thirteen_kills_the_same_command_continues_and_ends_with_the_same_weights(
    reference: Path, project: Path
) -> None:
    """Of the command, the launcher and the worker in turn, after a checkpoint and while it is written."""
    step = 0
    for number in range(13):
        process = fork(project)
        wait_for(project, f"step-{step + 10:08d}{'*' if number % 2 else ''}", process)
        # A file of the kill before may be there at once, and then no worker yet.
        members = wait_until(partial(whole_family, process))
        members[number % 3].send_signal(signal.SIGKILL)
        process.wait()
        assert process.returncode != 0
        wait_until_ended(members)
        step = max((int(path.name[5:13]) for path in project.glob(CHECKPOINTS) if path.suffix == ""), default=0)
    assert f"continuing at step {step} of 200" in run(project, begin=fork)
    assert outs(project) == outs(reference)
    undisturbed, killed = (Execution.find(folder / TRAIN_EXECUTION) for folder in (reference, project))
    assert killed is not None
    assert undisturbed is not None
    # What a killed session computed after its last checkpoint does not count: it was computed again.
    assert [one.first_step for one in killed.sessions] == [1, *(one.last_step + 1 for one in killed.sessions[:-1])]
    assert killed.sessions[-1].first_step == step + 1
    # Also of the checkpoints that are deleted by now.
    assert killed.checkpoints == undisturbed.checkpoints
    assert sorted(killed.checkpoints) == list(range(10, 201, 10))
    assert killed.weights_sha256 == weights_sha256(project / "model")


def test_after_the_death_of_one_of_two_workers_none_is_left_and_the_same_command_continues(
    reference: Path, project: Path
) -> None:
    process = fork(project, PARROTFLOW_LAUNCH="cpu_2")
    wait_for(project, "step-00000010", process)
    workers = [member for member in family(process) if member.cmdline()[-2:] == ["-m", "stages.train.worker"]]
    workers = [worker for worker in workers if ACCELERATE_LAUNCH not in worker.cmdline()]
    assert len(workers) == 2
    workers[1].kill()
    said, _ = process.communicate()
    assert process.returncode == EXIT_UNAVAILABLE, said
    assert said.splitlines()[-1] == (
        "error: train: a worker died; its messages are above (none if it was killed, as when memory runs out). Run the "
        "same command to continue from the last checkpoint"
    )
    wait_until_ended(workers)
    assert not (project / "model").exists()
    assert "continuing at step" in run(project, begin=fork, PARROTFLOW_LAUNCH="cpu_2")
    assert outs(project) == outs(reference)


def test_sigterm_to_every_process_of_the_run_as_slurm_sends_it_saves_and_the_same_command_continues(
    reference: Path, project: Path
) -> None:
    """Also if saving takes longer than the 30 s that torchrun gives its workers: the launcher sets no limit."""
    process = fork(project, PARROTFLOW_LAUNCH="cpu_2")
    wait_for(project, "step-00000020", process)
    for member in reversed(family(process)):
        member.send_signal(signal.SIGTERM)
    said, _ = process.communicate()
    assert process.returncode == EXIT_CONTINUE == 75, said
    assert re.search(r"stopped on request, state saved at step \d+; run the same command to continue", said)
    assert "continuing at step" in run(project, begin=fork, PARROTFLOW_LAUNCH="cpu_2")
    assert outs(project) == outs(reference)


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="needs a C++ compiler")
def test_compiled_runs_on_two_threads_leave_the_same_bytes(tmp_path: Path) -> None:
    project = write_project(
        tmp_path / "project",
        precision="bf16",
        max_steps=6,
        global_batch_size=64,
        sequence_length=32,
        model__n_embd=64,
        model__n_layer=1,
        optimizer__name="adamw",
    )
    settings = {"PARROTFLOW_COMPILE": "on", "OMP_NUM_THREADS": "2"}
    settings["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "inductor")
    run_workers(project, 1, **settings)
    speed = read_json(project / "reports/train_speed.json")
    assert speed["compiled"]
    assert speed["threads_per_process"] == 2

    again = copy_of(project, tmp_path / "again")
    run_workers(again, 1, **settings)
    assert outs(again) == outs(project)
