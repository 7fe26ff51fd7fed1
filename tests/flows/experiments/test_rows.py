"""Tidy data: a row a cell, nothing counted that is not the cell's own run."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from flows.experiments.rows import read_rows, rows_csv, tidy
from flows.experiments.runs import append_run, recorded_runs
from stages.runtime.entry import UserError
from tests.flows.experiments.small_experiment import EXPERIMENT, PARAMS, small_experiment
from tests.flows.experiments.some_runs import finished, some_data


@pytest.fixture(autouse=True)
def in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_cell_has_a_row_also_those_that_failed_or_never_ran(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    failed = finished(cells[1]).model_copy(update={"state": "failed", "message": "no luck"})

    data = tidy(experiment, cells, [finished(cells[0], 2.0), failed], PARAMS)

    assert [row.state for row in data.rows] == ["finished", "failed", *["not run"] * 10]
    assert data.rows[0].metrics == {"loss": 2.0, "cost": 1.0, "half": 0.5}
    assert data.rows[0].intervals == {"loss": (1.5, 2.5)}
    assert data.rows[1].metrics == {}
    table = list(csv.DictReader(io.StringIO(rows_csv(experiment, data))))
    assert len(table) == 12
    assert table[0]["loss (nats)"] == "2.0"
    assert (table[1]["state"], table[1]["message"], table[1]["loss (nats)"]) == ("failed", "no luck", "")
    assert table[0]["commit"] == f"c{cells[0].id}"


def test_the_rows_of_runs_csv_are_read_back_without_curves(tmp_path: Path) -> None:
    experiment, data = some_data(tmp_path, lacking=[1])
    path = tmp_path / "runs.csv"
    path.write_text(rows_csv(experiment, data))

    assert read_rows(experiment, path).rows == tuple(replace(row, curves={}) for row in data.rows)
    assert rows_csv(experiment, read_rows(experiment, path)) == path.read_text()

    path.write_text(path.read_text().replace("half (pairs)", "other"))
    with pytest.raises(UserError, match=r"runs\.csv: no column half \(pairs\); `parrotflow table NAME` makes it anew"):
        read_rows(experiment, path)


def test_a_run_that_was_made_with_other_values_than_the_cells_does_not_count(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    run = finished(cells[0])
    run.params["model"]["width"] = 3

    row = tidy(experiment, cells, [run], PARAMS).rows[0]

    assert (row.state, row.metrics) == ("other params", {})
    assert row.message == "model.width differ from params.yaml and the experiment"


def test_a_level_may_set_a_section_and_then_a_key_within_it(tmp_path: Path) -> None:
    shape = {"model.shape": {"width": 2, "depth": 3}}
    sizes = {"small": shape | {"model.shape.width": 1}, "large": shape | {"model.shape.width": 4}}
    recipes = {"a": {"model.name": "a"}, "b": {"model.name": "b"}}
    experiment, cells = small_experiment(tmp_path, axes={"size": sizes, "recipe": recipes})
    runs = [finished(cell) for cell in cells]
    runs[1].params["model"]["shape"]["depth"] = 4

    rows = tidy(experiment, cells, runs, PARAMS).rows

    assert [row.state for row in rows] == ["finished", "other params", *["finished"] * 10]
    assert rows[1].message == "model.shape differ from params.yaml and the experiment"


def test_a_run_without_a_section_that_its_cell_sets_does_not_count(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    run = finished(cells[0])
    del run.params["model"]

    row = tidy(experiment, cells, [run], PARAMS).rows[0]

    assert row.state == "other params"


def test_runs_of_different_params_are_not_mixed_and_those_of_todays_count(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    old, new = finished(cells[0]), finished(cells[1])
    old.params["other"]["rate"] = 0.1

    rows = tidy(experiment, cells, [old, new], PARAMS).rows

    assert [row.state for row in rows[:2]] == ["other params", "finished"]
    assert rows[0].message.startswith("other.rate differ")


def test_a_key_that_only_some_cells_set_has_to_be_the_same_in_the_others(tmp_path: Path) -> None:
    recipes = {"a": {}, "b": {"other.rate": 0.9}}
    experiment, cells = small_experiment(tmp_path, axes=EXPERIMENT["axes"] | {"recipe": recipes}, claims=[])
    runs = [finished(cell, 1.0) for cell in cells]
    runs[0].params["other"]["rate"] = 0.1

    data = tidy(experiment, cells, runs, PARAMS)

    assert [row.state for row in data.rows] == ["other params", *["finished"] * 11]
    assert data.rows[0].message == "other.rate differ from params.yaml and the experiment"

    for run in runs[:3] + runs[6:9]:  # all that do not set it
        run.params["other"]["rate"] = 0.1
    data = tidy(experiment, cells, runs, PARAMS)
    assert {row.state for row in data.rows} == {"finished"}
    assert data.notes == ("The runs were made with another params.yaml than today's: other.rate.",)


def test_runs_that_all_were_made_with_the_same_earlier_params_count_and_a_note_says_so(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    runs = [finished(cell) for cell in cells[:2]]
    for run in runs:
        run.params["other"]["rate"] = 0.1

    data = tidy(experiment, cells, runs, PARAMS)

    assert [row.state for row in data.rows[:2]] == ["finished", "finished"]
    assert data.notes == ("The runs were made with another params.yaml than today's: other.rate.",)


def test_params_that_no_stage_of_the_runs_reads_may_differ(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    old, new = finished(cells[0]), finished(cells[1])
    old.params["other"]["rate"] = 0.1

    data = tidy(experiment, cells, [old, new], PARAMS, {"model", "oth"})

    assert [row.state for row in data.rows[:2]] == ["finished", "finished"]
    assert data.notes == ()


def test_runs_from_several_commits_are_noted(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    runs = [finished(cells[0]), finished(cells[1]).model_copy(update={"baseline": "later"})]

    assert tidy(experiment, cells, runs, PARAMS).notes == ("The runs were started from 2 commits: later, start.",)


def test_a_number_that_a_report_lacks_is_missing(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    run = finished(cells[0])
    del run.reports["scores.json"]["cost"]

    assert set(tidy(experiment, cells, [run], PARAMS).rows[0].metrics) == {"loss"}


def test_the_order_in_which_runs_ended_and_earlier_failures_change_nothing(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    runs = [finished(cell) for cell in cells]
    record = tmp_path / "runs.jsonl"
    for run in [runs[3].model_copy(update={"state": "failed"}), *reversed(runs)]:
        append_run(record, run)

    assert tidy(experiment, cells, recorded_runs(record), PARAMS) == tidy(experiment, cells, runs, PARAMS)


def test_selections_follow_the_grid(tmp_path: Path) -> None:
    _, data = some_data(tmp_path)

    assert data.levels("size") == ["w1", "w2", "w4", "w8"]
    assert {row.label for row in data.select({"size": "w2", "recipe": "b"})} == {f"w2, b, seed {n}" for n in range(3)}
    with pytest.raises(UserError, match="size has no level `w3`; there are w1, w2, w4, w8"):
        data.select({"size": "w3"})
