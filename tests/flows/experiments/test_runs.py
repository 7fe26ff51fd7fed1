"""The record of runs survives kills, and DVC's experiments are read as the same runs."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from flows.dvc_repo.experiments import Reach, reach
from flows.experiments import results
from flows.experiments.cells import cells_of
from flows.experiments.experiment import read_experiment
from flows.experiments.results import dvc_runs
from flows.experiments.runs import append_run, last_runs, recorded_runs, reports_and_curves
from stages.runtime.entry import UserError
from tests.flows.experiments.small_experiment import small_experiment
from tests.flows.experiments.some_runs import finished
from tests.small_project import make_repository

TRAIN = """\
import json, yaml
params = yaml.safe_load(open("params.yaml"))["model"]
loss = 4.0 - params["width"]
json.dump({"loss": loss, "interval": [loss - 1, loss + 1], "cost": 1.0}, open("scores.json", "w"))
open("curve.tsv", "w").write("step\\tloss\\n1\\t9.0\\n2\\t8.5\\n")
"""

DVC_YAML = """\
stages:
  train:
    cmd: python train.py
    params: [model]
    deps: [train.py]
    metrics: [scores.json: {cache: false}]
    plots: [curve.tsv]
  other:
    cmd: echo '{}' > other.json
    metrics: [other.json: {cache: false}]
"""


@pytest.fixture(autouse=True)
def in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    _, cells = small_experiment(tmp_path)
    record = tmp_path / "deep/runs.jsonl"
    failed = finished(cells[0]).model_copy(update={"state": "failed", "message": "no luck"})
    for run in (failed, finished(cells[1]), finished(cells[0])):
        append_run(record, run)

    assert recorded_runs(record) == [failed, finished(cells[1]), finished(cells[0])]
    assert last_runs(record) == {cell.id: finished(cell) for cell in cells[:2]}
    assert recorded_runs(tmp_path / "none.jsonl") == []


def test_a_curve_that_diverged_is_read_back(tmp_path: Path) -> None:
    _, cells = small_experiment(tmp_path)
    curves = {"curve.tsv:loss": [(1.0, 2.0), (2.0, math.inf), (3.0, math.nan)]}
    append_run(tmp_path / "runs.jsonl", finished(cells[0]).model_copy(update={"curves": curves}))

    (run,) = recorded_runs(tmp_path / "runs.jsonl")

    assert str(run.curves) == str(curves)


@pytest.mark.parametrize("broken", ["2\t", "\t8.5", "2\tn/a", "two\t8.5", "2", "2\t\0", "2\t" + "x" * 150_000])
def test_a_point_of_a_curve_that_is_empty_or_no_number_is_left_out(broken: str) -> None:
    text = f"step\tloss\n1\t9.0\n{broken}\n3\tinf\n"

    _, curves = reports_and_curves({"curve.tsv": text}, (), {"curve.tsv:loss", "curve.tsv:other"})

    assert curves["curve.tsv:loss"][0] == (1.0, 9.0)
    assert curves["curve.tsv:loss"][1:] in ([(3.0, math.inf)], [])
    assert curves["curve.tsv:other"] == []


@pytest.mark.parametrize("left", [1, 50, 0.5, -1])
def test_a_kill_in_the_middle_of_a_line_costs_that_line_and_no_other(tmp_path: Path, left: float) -> None:
    _, cells = small_experiment(tmp_path)
    record = tmp_path / "runs.jsonl"
    append_run(record, finished(cells[0]))
    whole = record.read_bytes()
    end = int(len(whole) * left) if isinstance(left, float) else left
    record.write_bytes(whole + whole[:end])

    append_run(record, finished(cells[1]))

    assert {run.cell for run in recorded_runs(record)} == {cells[0].id, cells[1].id}


def commit_project(folder: Path) -> None:
    """Write the pipeline into the folder of an experiment, and commit all of it."""
    (folder / "train.py").write_text(TRAIN)
    (folder / "dvc.yaml").write_text(DVC_YAML)
    make_repository(folder)
    for key, value in (("user.name", "t"), ("user.email", "t@example.org")):
        subprocess.run(["git", "config", key, value], check=True)
    subprocess.run(["git", "add", "-A"], check=True)
    subprocess.run(["git", "commit", "-qm", "start"], check=True)


def test_dvcs_experiments_are_read_with_their_reports_and_curves_and_without_baselines(tmp_path: Path) -> None:
    small = {"size": {"small": {"model.width": 1}}, "recipe": {"a": {"model.name": "a"}, "b": {"model.name": "b"}}}
    experiment, _ = small_experiment(
        tmp_path, axes=small, figures={}, claims=[], seeds={"keys": ["model.seed"], "values": [5]}
    )
    cells = cells_of("toy", experiment, "small")
    commit_project(tmp_path)
    # DVC's failed experiments need its queue's worker, half a minute: the state is DVC's word, as `queued` is.
    to_run, to_queue = missing = results.commands("toy", "small")
    subprocess.run(to_run.replace("--queue", "--temp"), shell=True, check=True, capture_output=True)
    subprocess.run(to_queue, shell=True, check=True, capture_output=True)

    runs = {run.cell: run for run in dvc_runs({cell.name for cell in cells}, {"scores.json"}, {"curve.tsv:loss"})}

    done, queued = (runs[cell.id] for cell in cells)
    assert len(missing) == len(runs) == 2
    assert (done.state, queued.state) == ("finished", "queued")
    assert done.reports == {"scores.json": {"loss": 3.0, "interval": [2.0, 4.0], "cost": 1.0}}
    assert done.curves == {"curve.tsv:loss": [(1.0, 9.0), (2.0, 8.5)]}
    assert done.params == cells[0].params(done.params)
    assert queued.reports == {}
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert done.baseline == head != done.commit
    assert results.commands("toy", "small") == []
    (table, *_) = results.compute("toy", "small").tables
    assert [line[1].n for line in table.entries] == [1, 0]

    # What a sweep recorded before an edit of params.yaml does not count any more, and is not asked for again.
    old = finished(cells[0], 9.0).model_copy(update={"ended": "2099-01-01T00:00:00+00:00"})
    old.params["model"]["width"] = 3
    append_run(Path("experiments/toy/small/runs.jsonl"), old)
    assert results.commands("toy", "small") == []
    assert results.compute("toy", "small").data.rows[0].metrics["loss"] == 3.0

    reached = reach(["train"])
    assert reached == Reach({"model"}, {Path("scores.json"), Path("curve.tsv")}, ("train",))
    with pytest.raises(UserError, match=r"targets: .*trian"):
        reach(["trian"])

    # A report that no stage of the runs writes is the one of the commit from which they were started.
    text = (tmp_path / "experiments/toy.yaml").read_text()
    (tmp_path / "experiments/toy.yaml").write_text(text.replace("scores.json:cost", "other.json:cost"))
    with pytest.raises(UserError, match=r"toy\.yaml: other\.json: train and the stages before do not write"):
        results.require_written("toy", read_experiment("toy"), reached)


def test_a_run_has_no_reports_of_stages_that_it_did_not_reach(tmp_path: Path) -> None:
    """Its commit has those of the commit from which it was started."""
    small_experiment(
        tmp_path,
        axes={"size": {"s": {"model.width": 1}}, "recipe": {"a": {"model.name": "a"}}},
        figures={},
        claims=[],
        comparisons={},
        seeds={"keys": ["model.seed"], "values": [5]},
    )
    commit_project(tmp_path)
    (tmp_path / "dvc.yaml").write_text(DVC_YAML.replace("    cmd: echo", "    deps: [scores.json]\n    cmd: echo"))
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q"], check=True)
    subprocess.run(["git", "add", "-A"], check=True)
    subprocess.run(["git", "commit", "-qm", "with results"], check=True)
    (to_run,) = results.commands("toy", "small")
    wanted = ({"scores.json", "other.json"}, {"curve.tsv:loss"})

    subprocess.run(to_run.replace("--queue", "--temp"), shell=True, check=True, capture_output=True)
    name = to_run.split("--name ")[1].split()[0]
    (run,) = dvc_runs({name}, *wanted)
    assert run.reports.keys() == {"scores.json"}
    assert run.curves.keys() == {"curve.tsv:loss"}

    # An experiment that asks for them lacks them, and its command takes no name that is taken.
    text = (tmp_path / "experiments/toy.yaml").read_text().replace("- train", "- other")
    (tmp_path / "experiments/toy.yaml").write_text(text.replace("scores.json:cost", "other.json:cost"))
    (row,) = results.compute("toy", "small").data.rows
    assert (row.state, row.lacks, row.metrics.keys()) == ("finished", ("other.json",), {"loss"})
    (again,) = results.commands("toy", "small")
    assert again.startswith(f"dvc exp rename {name} {name}-{run.commit[:7]} && dvc exp run --queue --name {name} ")
    subprocess.run(again.replace("--queue", "--temp"), shell=True, check=True, capture_output=True)
    (run,) = dvc_runs({name}, *wanted)
    assert run.reports.keys() == {"scores.json", "other.json"}
    assert results.commands("toy", "small") == []


def test_of_two_experiments_with_the_same_cells_each_has_its_own_runs(tmp_path: Path) -> None:
    small_experiment(
        tmp_path,
        axes={"size": {"small": {"model.width": 1}}, "recipe": {"a": {"model.name": "a"}}},
        figures={},
        claims=[],
        comparisons={},
        seeds={"keys": ["model.seed"], "values": [5]},
    )
    (tmp_path / "experiments/toy_seeds.yaml").write_bytes((tmp_path / "experiments/toy.yaml").read_bytes())
    commit_project(tmp_path)

    (to_run,) = results.commands("toy_seeds", "small")
    subprocess.run(to_run.replace("--queue", "--temp"), shell=True, check=True, capture_output=True)

    assert " --name toy-seeds-small-a-seed5-" in to_run
    assert results.commands("toy_seeds", "small") == []
    assert [row.state for row in results.compute("toy_seeds", "small").data.rows] == ["finished"]
    assert len(results.commands("toy", "small")) == 1
    assert [row.state for row in results.compute("toy", "small").data.rows] == ["not run"]
