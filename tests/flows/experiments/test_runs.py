"""The record of runs survives kills; the tidy table of it has a row for each cell, with its own run alone."""

import csv
import io
import math
from pathlib import Path

import pandas as pd
import pytest

from flows.experiments.record import append_run, last_runs, recorded_runs, reports_and_curves
from flows.experiments.runs import rows_csv, tidy
from stages.runtime.errors import UserError
from tests.flows.experiments.small_experiment import small_experiment
from tests.flows.experiments.some_runs import NAME, finished


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    _, cells = small_experiment(tmp_path)
    record = tmp_path / "deep/runs.jsonl"
    failed = finished(cells[0]).model_copy(update={"state": "failed", "message": "no luck"})
    for run in (failed, finished(cells[1]), finished(cells[0])):
        append_run(record, run)

    assert recorded_runs(record) == [failed, finished(cells[1]), finished(cells[0])]
    assert last_runs(record) == {cell.id: finished(cell) for cell in cells[:2]}
    diverged = finished(cells[2]).model_copy(update={"curves": {"curve.tsv:loss": [(2.0, math.inf), (3.0, math.nan)]}})
    append_run(record, diverged)
    assert str(recorded_runs(record)[-1].curves) == str(diverged.curves)
    assert recorded_runs(tmp_path / "none.jsonl") == []


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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", r"runs\.jsonl: line 1 is not a run"),
        ('{"cell": "a', r"runs\.jsonl: line 1 is not a run"),
        ("<<<<<<< HEAD", r"runs\.jsonl: line 1: a merge conflict"),
    ],
)
def test_a_line_that_is_not_a_run_is_refused_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "runs.jsonl").write_text(f"{line}\n")

    with pytest.raises(UserError, match=message):
        recorded_runs(tmp_path / "runs.jsonl")


def test_every_cell_has_a_row_also_those_that_failed_or_never_ran(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    failed = finished(cells[1]).model_copy(update={"state": "failed", "message": "no luck"})

    lacks_cost = finished(cells[2])
    del lacks_cost.reports["scores.json"]["cost"]

    data = tidy(NAME, experiment, cells, [finished(cells[0], 2.0), failed, lacks_cost])

    assert data.frame["state"].tolist() == ["finished", "failed", "finished", *["not run"] * 9]
    assert data.frame.loc[2, ["loss", "cost", "half"]].notna().tolist() == [True, False, False]
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

    with pytest.raises(UserError, match=r"the runs differ in other\.rate, which their cells do not set"):
        tidy(NAME, experiment, cells, runs)


def test_a_parameter_that_another_level_sets_is_compared_among_the_cells_that_do_not(tmp_path: Path) -> None:
    idea = {"small": {"model.width": 1}, "large": {"model.width": 4}, "other rate": {"other.rate": 0.7}}
    experiment, cells = small_experiment(tmp_path, axes={"size": idea, "recipe": {"a": {"model.name": "a"}}}, claims=[])
    runs = [finished(cell) for cell in cells]
    tidy(NAME, experiment, cells, runs)
    runs[0].params["other"]["rate"] = 0.7  # adopted since, so this baseline is new and the other levels are not

    with pytest.raises(UserError, match=r"the runs differ in other\.rate, which their cells do not set"):
        tidy(NAME, experiment, cells, runs)


def test_runs_from_several_commits_are_noted(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    runs = [finished(cells[0]), finished(cells[1]).model_copy(update={"baseline": "later"})]

    assert tidy(NAME, experiment, cells, runs).notes == ("The runs were started from 2 commits: later, start.",)


def test_the_order_in_which_runs_ended_and_earlier_failures_change_nothing(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    runs = [finished(cell) for cell in cells]
    record = tmp_path / "runs.jsonl"
    for run in [runs[3].model_copy(update={"state": "failed"}), *reversed(runs)]:
        append_run(record, run)

    again, first = (tidy(NAME, experiment, cells, made) for made in (recorded_runs(record), runs))
    pd.testing.assert_frame_equal(again.frame, first.frame, check_exact=True)
    assert (again.curves, again.notes) == (first.curves, first.notes)
