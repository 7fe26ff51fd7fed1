"""The same inputs give the same bytes: in another folder, and after kill -9."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.flows.small_pipeline import STAGES, environment, make_pipeline, outs, repro, run


def test_two_runs_from_scratch_in_two_folders_give_the_same_hash_for_every_out(
    up_to_date: Path, tmp_path: Path
) -> None:
    other = make_pipeline(tmp_path / "elsewhere" / "project")

    assert repro(other) == STAGES
    assert outs(other) == outs(up_to_date)


def test_dvc_repro_goes_on_after_kill_9_and_ends_with_the_same_weights(up_to_date: Path, tmp_path: Path) -> None:
    folder, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    for copy in (folder, undisturbed):
        shutil.copytree(up_to_date, copy, symlinks=True)
        params = (copy / "params.yaml").read_text()
        (copy / "params.yaml").write_text(params.replace("max_steps: 6", "max_steps: 100"))
    repro(undisturbed, "train")
    before = outs(folder)

    kill_after_a_checkpoint(folder)
    assert outs(folder) == before
    said = run([sys.executable, "-m", "dvc", "repro", "train"], folder)

    assert "continuing at step" in said
    assert outs(folder) == outs(undisturbed)
    assert outs(folder)["model"] != before["model"]


def kill_after_a_checkpoint(folder: Path) -> None:
    """Start `dvc repro`, and end it and all that it started by SIGKILL once this run has a checkpoint.

    DVC goes first, as if all went at once: seeing its stage end, it would write its table of locks, and be killed then.
    """
    seen = checkpoints(folder)
    command = [sys.executable, "-m", "dvc", "repro", "train"]
    process = subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=subprocess.DEVNULL)
    while checkpoints(folder) <= seen:
        if process.poll() is not None:
            pytest.fail("the run ended before its first checkpoint was seen")
        time.sleep(0.005)
    for member in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        os.kill(member.pid, signal.SIGKILL)
    process.wait()


def checkpoints(folder: Path) -> set[Path]:
    """The whole checkpoints of all runs in a project."""
    return {path.parent for path in (folder / ".parrotflow/checkpoints").glob("*/step-*[0-9]/manifest.json")}
