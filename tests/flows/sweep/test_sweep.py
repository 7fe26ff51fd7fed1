"""`parrotflow sweep` from the command line, on a pipeline of shell commands."""

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml

from flows.experiments.record import recorded_runs as runs_of
from stages.runtime.errors import EXIT_CONTINUE
from tests.flows.experiments.small_experiment import write_experiment
from tests.flows.sweep.toy_sweep import TWO_CELLS, make_sweep, said_of, sweep
from tests.flows.test_pipeline import environment
from tests.flows.toy import commit, dvc, git, repro
from tests.small_project import DVC, run_module

ONE_RECIPE = TWO_CELLS | {"axes": {"recipe": {"a": {"model.name": "a"}}}, "claims": [], "comparisons": {}}
RECORD = Path("experiments/toy/runs.jsonl")
TABLE = Path("experiments/toy/tables/main.md")


def seeds(*values: int) -> dict[str, object]:
    return {"seeds": {"keys": ["model.seed"], "values": list(values)}}


def stages_that_ran(folder: Path) -> Counter[str]:
    """Of all sweeps so far."""
    return Counter(re.findall(r"│ (\w+) started\n", said_of(folder)))


def test_cells_become_dvc_experiments_shared_stages_run_once_and_the_project_is_left_alone(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path / "toy", **TWO_CELLS)
    repro(folder)  # `dvc exp apply` wants to know the results of every stage
    commit(folder)

    done = sweep(folder, DVC_SITE_CACHE_DIR=str(tmp_path / "dvc"))

    assert done.returncode == 0, done.stdout
    assert len(list((tmp_path / "dvc/repo").iterdir())) == 1, "what DVC knows of a clone's files outlives it"
    assert stages_that_ran(folder) == {"train": 1}
    assert "holds: b is better." in done.stdout
    assert git(folder, "status", "--porcelain") == "?? experiments/toy/"
    assert list((folder / ".parrotflow/sweep").iterdir()) == []
    names = {run.experiment for run in runs_of(folder / RECORD)}
    assert names == set(dvc(folder, "exp", "list", "--name-only").split())
    (b,) = (run for run in runs_of(folder / RECORD) if run.params["model"]["name"] == "b")
    applied = run_module(DVC, ["exp", "apply", b.experiment], folder)
    assert applied.returncode == 0, applied.stderr
    assert json.loads((folder / "scores.json").read_text()) == b.reports["scores.json"]
    assert yaml.safe_load((folder / "params.yaml").read_text())["model"]["name"] == "b"


def test_only_what_changed_runs_again(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path / "toy", **ONE_RECIPE | seeds(0))
    assert sweep(folder).returncode == 0

    write_experiment(folder, **ONE_RECIPE | seeds(0, 1))  # the experiment's file is read by no cell
    assert sweep(folder).returncode == 0
    assert stages_that_ran(folder) == {"collect": 1, "tokenize": 1, "train": 2}

    (folder / "train.py").write_text((folder / "train.py").read_text() + "\n")
    refused = sweep(folder)
    assert refused.returncode == 2
    assert "train.py: changed since the last commit" in refused.stdout
    assert (dry := sweep(folder, "--dry")).returncode == 2
    assert dry.stdout == refused.stdout

    commit(folder)
    assert "a, seed 0: train has changed since its last run" in sweep(folder, "--dry").stdout
    assert sweep(folder).returncode == 0
    assert stages_that_ran(folder) == {"collect": 1, "tokenize": 1, "train": 4}
    assert "0 of 2 cells would run" in sweep(folder, "--dry").stdout


def test_a_cell_that_fails_is_shown_stays_out_of_the_mean_and_runs_again_on_demand(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path / "toy", **ONE_RECIPE | seeds(0, 13))

    first = sweep(folder)

    assert first.returncode == 1
    assert "a, seed 13 failed: train: no luck" in first.stdout
    assert "(1/2)" in (folder / TABLE).read_text()
    assert "Traceback" not in first.stdout

    assert "0 of 2 cells would run; 1 failed, `--retry` runs them again" in sweep(folder, "--dry").stdout
    assert "1 of 2 cells would run\n" in sweep(folder, "--dry", "--retry").stdout
    again = sweep(folder)
    assert again.returncode == 1
    assert stages_that_ran(folder)["train"] == 2
    assert "1 of 2 cells have no result" in again.stdout

    (tmp_path / "luck").touch()
    third = sweep(folder, "--retry", LUCK=str(tmp_path / "luck"))
    assert third.returncode == 0, third.stdout
    assert stages_that_ran(folder)["train"] == 3


@pytest.mark.acceptance
def test_a_sweep_killed_at_any_moment_ends_with_the_same_tables(tmp_path: Path) -> None:
    slow = TWO_CELLS | {"base": {"model.seconds": 0.5}}
    undisturbed = make_sweep(tmp_path / "undisturbed", **slow)
    write_params(undisturbed)
    began = time.monotonic()
    assert sweep(undisturbed).returncode == 0
    seconds = time.monotonic() - began
    killed = make_sweep(tmp_path / "killed", **slow)
    write_params(killed)

    for number in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli", "sweep", "toy"],
            cwd=killed,
            env=environment(tmp_path),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(random.Random(number).uniform(0.1, 0.9) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.wait()
    assert sweep(killed).returncode == 0

    for suffix in (".md", ".tex"):  # the page names commits, which hold the time
        name = TABLE.with_suffix(suffix)
        assert (killed / name).read_bytes() == (undisturbed / name).read_bytes()


def write_params(folder: Path) -> None:
    """`model.seconds` in params.yaml, so that a base may set it."""
    values = yaml.safe_load((folder / "params.yaml").read_text())
    values["model"]["seconds"] = 0
    (folder / "params.yaml").write_text(yaml.safe_dump(values))
    commit(folder)


def test_ctrl_c_ends_every_cell_and_the_same_command_continues(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path / "toy", **TWO_CELLS | {"base": {"model.seconds": 600}})
    write_params(folder)
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "sweep", "toy", "--at-once", "2"],
        cwd=folder,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        said_of(folder, line)
        if said_of(folder).count("train started") == 2:
            break

    process.send_signal(signal.SIGTERM)

    said = process.stdout.read()
    assert process.wait() == EXIT_CONTINUE
    assert "run the same command to continue" in said
    assert "Traceback" not in said
    assert runs_of(folder / RECORD) == []
    write_experiment(folder, **TWO_CELLS)
    write_params(folder)
    assert sweep(folder).returncode == 0
    assert stages_that_ran(folder) == {"collect": 1, "tokenize": 1, "train": 4}


def test_a_project_in_a_folder_of_its_repository_is_swept_too(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path / "repository" / "toy", **ONE_RECIPE | seeds(0))
    shutil.rmtree(folder / ".git")
    subprocess.run(["git", "init", "-q"], cwd=folder.parent, check=True)
    commit(folder)

    done = sweep(folder)

    assert done.returncode == 0, done.stdout
    (run,) = runs_of(folder / RECORD)
    assert git(folder.parent, "rev-parse", f"{run.commit}^") == git(folder.parent, "rev-parse", "HEAD")
    assert "1 of 1" not in sweep(folder, "--dry").stdout
