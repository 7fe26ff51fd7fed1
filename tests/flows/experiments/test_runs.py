"""The record of runs survives kills, and holds what their stages have written."""

import math
from pathlib import Path

import pytest

from flows.experiments.runs import append_run, last_runs, recorded_runs, reports_and_curves
from stages.runtime.entry import UserError
from tests.flows.experiments.small_experiment import small_experiment
from tests.flows.experiments.some_runs import finished


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


@pytest.mark.parametrize(
    ("line", "message"),
    [("{}", r"runs\.jsonl: line 1 is not a run"), ("<<<<<<< HEAD", r"runs\.jsonl: line 1: a conflict of git")],
)
def test_a_line_that_is_not_a_run_is_refused_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "runs.jsonl").write_text(f"{line}\n")

    with pytest.raises(UserError, match=message):
        recorded_runs(tmp_path / "runs.jsonl")
