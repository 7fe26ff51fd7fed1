"""The same inputs give the same bytes: in another folder, and after kill -9."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.flows.small_pipeline import STAGES, dvc, environment, make_pipeline, outs, repro, run
from tests.flows.toy import git
from tests.small_project import PARROTFLOW, run_module
from tests.waiting import wait_until


@pytest.mark.acceptance
def test_two_runs_from_scratch_in_two_folders_give_the_same_hash_for_every_out(
    up_to_date: Path, tmp_path: Path
) -> None:
    other = make_pipeline(tmp_path / "elsewhere" / "project")

    assert repro(other) == STAGES
    assert outs(other) == outs(up_to_date)


@pytest.mark.acceptance
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
    wait_until(lambda: checkpoints(folder) > seen or process.poll() is not None)
    assert process.poll() is None, "the run ended before its first checkpoint was seen"
    for member in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        os.kill(member.pid, signal.SIGKILL)
    process.wait()


def checkpoints(folder: Path) -> set[Path]:
    """The whole checkpoints of all runs in a project."""
    return {path.parent for path in (folder / ".parrotflow/checkpoints").glob("*/step-*[0-9]/manifest.json")}


WITHOUT_PUBLISH = [stage for stage in STAGES if stage != "publish"]


def test_in_a_clone_that_shares_the_cache_run_and_repro_restore_every_stage_but_publish(
    up_to_date: Path, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(up_to_date), str(clone))
    dvc(clone, "cache", "dir", "--local", str(up_to_date / ".dvc/cache"))

    ran = run_module(PARROTFLOW, ["run", "clean"], clone, environment(clone, HOME=str(tmp_path))).stdout
    reproduced = dvc(clone, "repro", *WITHOUT_PUBLISH)

    by_run = [stage for stage in ("code", "collect", "clean") if f"{stage} │ restored" in ran]
    by_repro = [line.split("'")[1] for line in reproduced.splitlines() if "is cached - skipping run" in line]
    assert by_run == ["code", "collect", "clean"], ran
    assert sorted(by_run + by_repro) == sorted(WITHOUT_PUBLISH), reproduced
    assert outs(clone).items() < outs(up_to_date).items()
    shown = json.loads(dvc(clone, "plots", "show", "--json"))
    assert "errors" not in shown
    reports = [path for path in shown["data"] if path.endswith(".json")]
    assert {"reports/clean.json", "reports/evaluate.json", "reports/score.json"} < {*reports}
    assert all(shown["data"][report] == [] for report in reports), "DVC draws nothing of a report"


def test_in_a_hundred_columns_dvc_shows_by_which_numbers_runs_are_compared(up_to_date: Path) -> None:
    table = dvc(up_to_date, "exp", "show").splitlines()

    columns = re.split(r" {2,}", table[1][:100].strip())
    assert columns[:2] == ["Experiment", "Created"]
    assert {"epochs", "training_loss", "bits_per_byte"} <= {*columns}
