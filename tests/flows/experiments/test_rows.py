"""Tidy data: a row a cell, nothing counted that is not the cell's own run."""

import csv
import io
from pathlib import Path

import pandas as pd
import pytest

from flows.experiments.rows import labels, rows_csv, tidy
from flows.experiments.runs import append_run, recorded_runs
from stages.runtime.entry import UserError
from tests.flows.experiments.small_experiment import EXPERIMENT, PARAMS, small_experiment
from tests.flows.experiments.some_runs import NAME, finished, some_data


@pytest.fixture(autouse=True)
def in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_cell_has_a_row_also_those_that_failed_or_never_ran(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    failed = finished(cells[1]).model_copy(update={"state": "failed", "message": "no luck"})

    data = tidy(NAME, experiment, cells, [finished(cells[0], 2.0), failed], PARAMS)

    assert data.frame["state"].tolist() == ["finished", "failed", *["not run"] * 10]
    numbers = data.frame[["loss", "cost", "half", "loss low", "loss high"]]
    assert numbers.loc[0].tolist() == [2.0, 1.0, 0.5, 1.5, 2.5]
    assert numbers.loc[1].isna().all()
    table = list(csv.DictReader(io.StringIO(rows_csv(data))))
    assert len(table) == 12
    assert table[0]["loss (nats)"] == "2.0"
    assert (table[1]["state"], table[1]["message"], table[1]["loss (nats)"]) == ("failed", "no luck", "")
    assert table[0]["commit"] == f"c{cells[0].id}"


def test_a_run_that_was_made_with_other_values_than_the_cells_does_not_count(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    run = finished(cells[0])
    run.params["model"]["width"] = 3

    row = tidy(NAME, experiment, cells, [run], PARAMS).frame.loc[0]

    assert row["state"] == "other params"
    assert row[["loss", "cost", "half"]].isna().all()
    assert row["message"] == "model.width differ from params.yaml and the experiment"


def test_a_level_may_set_a_section_and_then_a_key_within_it(tmp_path: Path) -> None:
    shape = {"model.shape": {"width": 2, "depth": 3}}
    sizes = {"small": shape | {"model.shape.width": 1}, "large": shape | {"model.shape.width": 4}}
    recipes = {"a": {"model.name": "a"}, "b": {"model.name": "b"}}
    experiment, cells = small_experiment(tmp_path, axes={"size": sizes, "recipe": recipes})
    runs = [finished(cell) for cell in cells]
    runs[1].params["model"]["shape"]["depth"] = 4

    frame = tidy(NAME, experiment, cells, runs, PARAMS).frame

    assert frame["state"].tolist() == ["finished", "other params", *["finished"] * 10]
    assert frame["message"][1] == "model.shape.depth differ from params.yaml and the experiment"


def test_a_run_without_a_section_that_its_cell_sets_does_not_count(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    run = finished(cells[0])
    del run.params["model"]

    assert tidy(NAME, experiment, cells, [run], PARAMS).frame["state"][0] == "other params"


def test_runs_of_different_params_are_not_mixed_and_those_of_todays_count(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    old, new = finished(cells[0]), finished(cells[1])
    old.params["other"]["rate"] = 0.1

    frame = tidy(NAME, experiment, cells, [old, new], PARAMS).frame

    assert frame["state"].tolist()[:2] == ["other params", "finished"]
    assert frame["message"][0].startswith("other.rate differ")


def test_a_key_that_only_some_cells_set_has_to_be_the_same_in_the_others(tmp_path: Path) -> None:
    recipes = {"a": {}, "b": {"other.rate": 0.9}}
    experiment, cells = small_experiment(tmp_path, axes=EXPERIMENT["axes"] | {"recipe": recipes}, claims=[])
    runs = [finished(cell, 1.0) for cell in cells]
    runs[0].params["other"]["rate"] = 0.1

    data = tidy(NAME, experiment, cells, runs, PARAMS)

    assert data.frame["state"].tolist() == ["other params", *["finished"] * 11]
    assert data.frame["message"][0] == "other.rate differ from params.yaml and the experiment"

    for run in runs[:3] + runs[6:9]:  # all that do not set it
        run.params["other"]["rate"] = 0.1
    data = tidy(NAME, experiment, cells, runs, PARAMS)
    assert {*data.frame["state"]} == {"finished"}
    assert data.notes == ("The runs were made with another params.yaml than today's: other.rate.",)


def test_runs_that_all_were_made_with_the_same_earlier_params_count_and_a_note_says_so(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    runs = [finished(cell) for cell in cells[:2]]
    for run in runs:
        run.params["other"]["rate"] = 0.1

    data = tidy(NAME, experiment, cells, runs, PARAMS)

    assert data.frame["state"].tolist()[:2] == ["finished", "finished"]
    assert data.notes == ("The runs were made with another params.yaml than today's: other.rate.",)


def test_params_that_no_stage_of_the_runs_reads_may_differ(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    old, new = finished(cells[0]), finished(cells[1])
    old.params["other"]["rate"] = 0.1

    data = tidy(NAME, experiment, cells, [old, new], PARAMS, {"model", "oth"})

    assert data.frame["state"].tolist()[:2] == ["finished", "finished"]
    assert data.notes == ()


def test_runs_from_several_commits_are_noted(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    runs = [finished(cells[0]), finished(cells[1]).model_copy(update={"baseline": "later"})]

    assert tidy(NAME, experiment, cells, runs, PARAMS).notes == ("The runs were started from 2 commits: later, start.",)


def test_a_number_that_a_report_lacks_is_missing(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    run = finished(cells[0])
    del run.reports["scores.json"]["cost"]

    row = tidy(NAME, experiment, cells, [run], PARAMS).frame.loc[0]
    assert row[["loss", "cost", "half"]].notna().tolist() == [True, False, False]


def test_the_order_in_which_runs_ended_and_earlier_failures_change_nothing(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    runs = [finished(cell) for cell in cells]
    record = tmp_path / "runs.jsonl"
    for run in [runs[3].model_copy(update={"state": "failed"}), *reversed(runs)]:
        append_run(record, run)

    again, first = (tidy(NAME, experiment, cells, made, PARAMS) for made in (recorded_runs(record), runs))
    pd.testing.assert_frame_equal(again.frame, first.frame, check_exact=True)
    assert (again.curves, again.notes) == (first.curves, first.notes)


def test_selections_follow_the_grid(tmp_path: Path) -> None:
    data = some_data(tmp_path)

    assert data.levels("size") == ["w1", "w2", "w4", "w8"]
    assert {*labels(data.select({"size": "w2", "recipe": "b"}))} == {f"w2, b, seed {n}" for n in range(3)}
    with pytest.raises(UserError, match="size has no level `w3`; there are w1, w2, w4, w8"):
        data.select({"size": "w3"})
