"""A run under a mixture with a phase: killed, it continues on two processes to the bits of one."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from stages.train.loop import Trainer
from tests.small_project import folder_bytes
from tests.train.small_run import copy_of, run_workers, write_project

STEPS = 20
MIXTURE: dict[str, Any] = {
    "weights": {"sums": 0.75, "more": 0.25},
    "phases": [{"after": 0.6, "weights": {"more": 1}}],
}
CHANGES: dict[str, Any] = {
    "mixture": MIXTURE,
    "max_steps": STEPS,
    "checkpoint_every_steps": 5,
    "deterministic_micro_batch_size": 2,
}


def alternating(number: int) -> str:
    """Two sources, and a third that has no weight."""
    return ("sums", "more", "unused")[number % 3]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of one process."""
    folder = write_project(tmp_path_factory.mktemp("reference"), alternating, **CHANGES)
    run_workers(folder, 1)
    return folder


def results(folder: Path) -> dict[str, bytes]:
    """Every file that DVC takes from a run."""
    return (
        folder_bytes(folder / "model")
        | folder_bytes(folder / "reports/curves")
        | {"train.json": (folder / "reports/train.json").read_bytes()}
    )


def test_a_killed_run_continues_on_two_processes_to_the_bytes_of_one(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Killed after the first step of the phase, it continues from a checkpoint before it."""
    project, take_step = copy_of(reference, tmp_path / "project"), Trainer.step

    def killed(trainer: Trainer, step: int, batches: Any) -> Any:
        if step == 13:
            while not list(Path(".parrotflow/checkpoints").glob("*/step-00000010/manifest.json")):
                time.sleep(0.01)  # it is written by a thread
            os.kill(os.getpid(), signal.SIGKILL)
        return take_step(trainer, step, batches)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", killed)
        run_workers(project, 1, expected_code=-signal.SIGKILL)
    assert not (project / "model").exists()
    run_workers(project, 2)

    assert "continuing at step 10 of 20" in capfd.readouterr().out
    assert results(project) == results(reference)
