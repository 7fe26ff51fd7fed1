"""Tidy data: a row a cell, nothing counted that is not the cell's own run."""

import csv
import io
from pathlib import Path

import pandas as pd
import pytest

from flows.experiments.rows import labels, rows_csv, tidy
from flows.experiments.runs import append_run, recorded_runs
from stages.runtime.entry import UserError
from tests.flows.experiments.small_experiment import small_experiment
from tests.flows.experiments.some_runs import NAME, finished, some_data


@pytest.fixture(autouse=True)
def in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_cell_has_a_row_also_those_that_failed_or_never_ran(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    failed = finished(cells[1]).model_copy(update={"state": "failed", "message": "no luck"})

    data = tidy(NAME, experiment, cells, [finished(cells[0], 2.0), failed])

    assert data.frame["state"].tolist() == ["finished", "failed", *["not run"] * 10]
    numbers = data.frame[["loss", "cost", "half", "loss low", "loss high"]]
    assert numbers.loc[0].tolist() == [2.0, 1.0, 0.5, 1.5, 2.5]
    assert numbers.loc[1].isna().all()
    table = list(csv.DictReader(io.StringIO(rows_csv(data))))
    assert len(table) == 12
    assert table[0]["loss (nats)"] == "2.0"
    assert (table[1]["state"], table[1]["message"], table[1]["loss (nats)"]) == ("failed", "no luck", "")
    assert table[0]["commit"] == f"c{cells[0].id}"


def test_runs_that_differ_in_a_parameter_which_no_cell_sets_are_refused_by_its_name(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    runs = [finished(cell) for cell in cells]
    tidy(NAME, experiment, cells, runs)
    runs[3].params["other"]["rate"] = 0.1

    with pytest.raises(UserError, match=r"the runs differ in other\.rate, which no cell sets"):
        tidy(NAME, experiment, cells, runs)


def test_runs_from_several_commits_are_noted(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    runs = [finished(cells[0]), finished(cells[1]).model_copy(update={"baseline": "later"})]

    assert tidy(NAME, experiment, cells, runs).notes == ("The runs were started from 2 commits: later, start.",)


def test_a_number_that_a_report_lacks_is_missing(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    run = finished(cells[0])
    del run.reports["scores.json"]["cost"]

    row = tidy(NAME, experiment, cells, [run]).frame.loc[0]
    assert row[["loss", "cost", "half"]].notna().tolist() == [True, False, False]


def test_the_order_in_which_runs_ended_and_earlier_failures_change_nothing(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    runs = [finished(cell) for cell in cells]
    record = tmp_path / "runs.jsonl"
    for run in [runs[3].model_copy(update={"state": "failed"}), *reversed(runs)]:
        append_run(record, run)

    again, first = (tidy(NAME, experiment, cells, made) for made in (recorded_runs(record), runs))
    pd.testing.assert_frame_equal(again.frame, first.frame, check_exact=True)
    assert (again.curves, again.notes) == (first.curves, first.notes)


def test_selections_follow_the_grid(tmp_path: Path) -> None:
    data = some_data(tmp_path)

    assert data.levels("size") == ["w1", "w2", "w4", "w8"]
    assert {*labels(data.select({"size": "w2", "recipe": "b"}))} == {f"w2, b, seed {n}" for n in range(3)}
    with pytest.raises(UserError, match="size has no level `w3`; there are w1, w2, w4, w8"):
        data.select({"size": "w3"})
