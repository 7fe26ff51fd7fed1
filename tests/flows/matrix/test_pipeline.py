"""An experiment's grid as DVC's matrix stages: plain `dvc repro` runs it and makes the table."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli import app
from flows.experiments.results import commands
from flows.experiments.runs import append_run
from flows.matrix.pipeline import write_matrix
from flows.plan.graph import make_plan
from stages.runtime.entry import UserError
from tests.flows.experiments.small_experiment import EXPERIMENT, small_experiment, write_experiment
from tests.flows.experiments.some_runs import finished
from tests.flows.small_pipeline import environment, git, make_pipeline
from tests.small_project import ROOT, make_repository

TRAIN = """\
import json, yaml
params = yaml.safe_load(open("params.yaml"))["model"]
loss = 4.0 - params["width"] + params["seed"] / 10
json.dump({"loss": loss, "interval": [loss - 1, loss + 1], "cost": 1.0}, open("scores.json", "w"))
open("curve.tsv", "w").write(f"step\\tloss\\n1\\t9.0\\n2\\t{loss}\\n")
"""

DVC_YAML = """\
stages:
  prepare:
    cmd: head -c 3 data/source.txt > data/raw.txt; echo ${model.name} > seen.txt
    deps: [data/source.txt]
    params: [model.name]
    outs: [data/raw.txt, seen.txt]
    meta: {flow: {retries: 1}}
  train:
    cmd: python train.py
    params: [model]
    deps: [train.py, data/raw.txt]
    metrics: [scores.json: {cache: false}]
    plots: [curve.tsv]
"""

FOLDER = Path("experiments/toy/small")
SMALL: dict[str, Any] = {
    "axes": EXPERIMENT["axes"] | {"recipe": {"a": {"model.name": "a"}}},
    "comparisons": {},
    "claims": [],
    "seeds": {"keys": ["model.seed"], "values": [0]},
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two stages and an experiment of two cells, committed and not run."""
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path, **SMALL)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/source.txt").write_text("0123456789")
    make_repository(tmp_path)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "start")
    return tmp_path


def repro(folder: Path) -> list[str]:
    """`dvc repro` in the experiment's folder; the stages that ran."""
    command = [sys.executable, "-m", "dvc", "--cd", str(folder), "repro"]
    # This version of flows comes second: a cell has its own packages, if any.
    variables = environment(Path.cwd(), PYTHONPATH=os.pathsep.join([str(Path.cwd()), str(ROOT)]))
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [line.split("'")[1] for line in ended.stdout.splitlines() if line.startswith("Running stage")]


def tables() -> dict[str, bytes]:
    """The tables of a paper; HTML and JSON name the commits of DVC's experiments too."""
    return {file.name: file.read_bytes() for file in FOLDER.glob("tables/*.[tmc]*")}


def test_dvc_repro_makes_the_table_of_dvcs_experiments_and_runs_only_what_is_new(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for key, value in (("user.name", "t"), ("user.email", "t@example.org")):
        git(project, "config", key, value)
    for command in commands("toy", "small"):
        here = command.replace("dvc exp run --queue", f"{sys.executable} -m dvc exp run --temp")
        subprocess.run(here, shell=True, check=True, capture_output=True)
    app(["table", "toy"], result_action="return_value")
    from_experiments = tables()
    shutil.rmtree(FOLDER)
    shutil.rmtree(project / ".dvc/cache/runs")  # from which the cells would else be restored
    _, cells = small_experiment(project, **SMALL)
    append_run(FOLDER / "runs.jsonl", finished(cells[0], 99.0).model_copy(update={"ended": "2099-01-01T00:00:00"}))

    app(["table", "toy", "--matrix"], result_action="return_value")
    small, large = "toy-small-a-seed0-24bde4df", "toy-large-a-seed0-e7e1674b"
    once, each = [f"prepare@{small}"], [f"{stage}@{cell}" for stage in ("train", "record") for cell in (small, large)]
    assert repro(FOLDER) == [*once, *each, "table"]
    assert tables() == from_experiments
    assert sorted(from_experiments) == [
        f"{name}.{form}" for name in ("intervals", "main") for form in ("csv", "md", "tex")
    ]
    capsys.readouterr()
    (FOLDER / "runs.jsonl").unlink()  # which is no input of the table's stage
    app(["cell", "toy/main", "small", "loss"], result_action="return_value")
    assert f"\n    stages of DVC in {FOLDER}/cells/{small}\n" in capsys.readouterr().out
    assert [stage.name for stage in make_plan()] == ["prepare", "train"]

    write_experiment(project, **SMALL | {"seeds": {"keys": ["model.seed"], "values": [0, 1]}})
    assert write_matrix("toy", "small") == (FOLDER, 4)
    ran = repro(FOLDER)
    assert [name.partition("@")[0] for name in ran] == ["train", "train", "record", "record", "table"]
    assert all("seed1" in name for name in ran[:-1])
    assert "| small | a | 1.0 | 3.05 ± 0.07 |" in (FOLDER / "tables/main.md").read_text()

    # A cell under another name: what it left under the first one does not count.
    (FOLDER / "cells" / small / "run.json").write_text(
        (FOLDER / "cells" / small / "run.json").read_text().replace('"loss": 3.0', '"loss": 99.0')
    )
    renamed = yaml.safe_load((project / "experiments/toy.yaml").read_text().replace("size: small", "size: tiny"))
    renamed["axes"]["size"] = {"tiny": renamed["axes"]["size"].pop("small")} | renamed["axes"]["size"]
    (project / "experiments/toy.yaml").write_text(yaml.safe_dump(renamed, sort_keys=False))
    write_matrix("toy", "small")
    repro(FOLDER)
    assert "| tiny | a | 1.0 | 3.05 ± 0.07 |" in (FOLDER / "tables/main.md").read_text()


def test_a_stage_of_ours_runs_once_for_all_cells_with_the_same_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_pipeline(tmp_path / "project", documents=4)
    monkeypatch.chdir(folder)
    experiment = EXPERIMENT | SMALL | {
        "targets": ["tokenizer"],
        "axes": {"size": {"param": "tokenizer.vocabulary_size", "values": [280, 290]}},
        "seeds": {"keys": ["train.seed"], "values": [0]},
        "metrics": {"tokens": EXPERIMENT["metrics"]["cost"] | {"source": "reports/tokenizer.json:vocabulary_size"}},
        "curves": {}, "fits": {}, "figures": {},
        "tables": {"main": {"caption": "T.", "rows": ["size"], "metrics": ["tokens"], "spread": "sd"}},
    }  # fmt: skip
    (folder / "experiments").mkdir()
    (folder / "experiments/toy.yaml").write_text(yaml.safe_dump(experiment))

    write_matrix("toy", "small")
    ran = [name.partition("@")[0] for name in repro(FOLDER)]

    assert ran == ["collect", "clean", "tokenizer", "tokenizer", "record", "record", "table"]
    assert "| 290 | 290.0 |" in (FOLDER / "tables/main.md").read_text()


def test_stages_that_are_a_matrix_already_are_refused(project: Path) -> None:
    text = DVC_YAML.replace("  prepare:\n    cmd", "  prepare:\n    matrix: {n: [1]}\n    cmd")
    (project / "dvc.yaml").write_text(text)

    with pytest.raises(UserError, match=r"dvc\.yaml: prepare@1: .* cannot be repeated .* --commands"):
        write_matrix("toy", "small")
