"""`parrotflow table`, from the record of a sweep to the files of a paper."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from flows.cli import app
from flows.experiments.cells import Cell
from flows.experiments.results import compute
from flows.experiments.runs import append_run
from stages.runtime.entry import UserError
from tests.flows.experiments.small_experiment import EXPERIMENT, small_experiment
from tests.flows.experiments.some_runs import WIDTHS, figures, finished

RECORD = Path("experiments/toy/runs.jsonl")


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """The record of 12 runs, of which the last has failed, without git, DVC and params.yaml."""
    monkeypatch.chdir(tmp_path)
    _, cells = small_experiment(tmp_path)
    (tmp_path / "params.yaml").unlink()
    for cell in cells[:-1]:
        append_run(RECORD, finished(cell))
    append_run(RECORD, finished(cells[-1]).model_copy(update={"state": "failed", "reports": {}, "message": "no luck"}))
    return cells


def parrotflow(*words: str) -> int:
    """Run a command in this process; its exit code."""
    try:
        app(words)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_from_the_record_of_a_sweep_to_tables_figures_and_claims(
    cells: list[Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    assert parrotflow("table", "toy") == 0
    said = capsys.readouterr().out
    assert "| large | b | 16.0 (2/3) |" in said
    assert "\n12 runs: 11 finished, 1 failed\nlaw: not fitted: a power law needs 3 different x\n" in said
    assert "holds: b is better." in said
    folder = RECORD.parent
    assert json.loads((folder / "claims.json").read_text())[1]["answer"] == "cannot be said"
    made = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
    assert made >= {"runs.csv", "tables/main.tex", "tables/recipes.md", "figures/curves.pdf", "figures/points.svg"}
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}

    assert parrotflow("table", "toy") == 0
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


def losses() -> list[float | None]:
    """Of each cell, as the table has them now."""
    numbers = compute("toy").data.frame["loss"]
    return [None if math.isnan(number) else number for number in numbers]


def test_of_the_runs_of_a_cell_the_newest_counts(cells: list[Cell]) -> None:
    recorded = losses()
    append_run(RECORD, finished(cells[0], loss=9.0))
    append_run(RECORD, finished(cells[1]).model_copy(update={"state": "failed", "reports": {}}))

    assert losses() == [9.0, None, *recorded[2:]]


def test_check_compares_the_runs_number_by_number_and_writes_nothing(
    cells: list[Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"runs\.csv: no such file; `parrotflow table NAME` makes it"):
        parrotflow("table", "toy", "--check")
    parrotflow("table", "toy")
    before = {path: path.read_bytes() for path in RECORD.parent.rglob("*.*") if path != RECORD}
    capsys.readouterr()

    assert parrotflow("table", "toy", "--check") == 0
    assert capsys.readouterr().out == "12 runs, 36 numbers: every number is equal\n"

    loss = finished(cells[0]).reports["scores.json"]["loss"]
    append_run(RECORD, finished(cells[0], loss=loss + 0.4))  # its own interval is 0.5 to each side
    assert parrotflow("table", "toy", "--check") == 0
    assert "small, a, seed 0, loss (nats): within its interval: 5.01, now 5.41\n" in capsys.readouterr().out

    append_run(RECORD, finished(cells[0], loss=9.0))
    assert parrotflow("table", "toy", "--check") == 1
    assert "small, a, seed 0, loss (nats): different: 5.01, now 9\n" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in RECORD.parent.rglob("*.*") if path != RECORD} == before

    sizes = EXPERIMENT["axes"]["size"] | {"huge": {"model.width": 9}}
    claim = {"says": "Huge helps.", "holds_if": [{"mean": "loss", "levels": {"size": "huge", "recipe": "a"}}]}
    claim["holds_if"][0]["value"] = {"below": 1}  # type: ignore[index]
    small_experiment(tmp_path, axes=EXPERIMENT["axes"] | {"size": sizes}, claims=[claim])
    assert parrotflow("table", "toy", "--check") == 1
    assert "huge, a, seed 0: new\n" in capsys.readouterr().out


def test_a_table_or_figure_that_the_file_no_longer_has_is_removed(cells: list[Cell], tmp_path: Path) -> None:
    parrotflow("table", "toy")
    assert (RECORD.parent / "tables/intervals.tex").exists()

    small_experiment(tmp_path, tables={"main": EXPERIMENT["tables"]["main"]}, figures={})
    parrotflow("table", "toy")

    assert {path.stem for path in (RECORD.parent / "tables").iterdir()} == {"main", "recipes"}
    assert not [*RECORD.parent.glob("figures/*")]


def four_widths(folder: Path, runs_lost: int = 0) -> None:
    """Let the project have the small experiment with enough sizes for its power law, some runs of it missing."""
    _, cells = small_experiment(folder, axes=small_axes(), claims=[], comparisons={}, figures=figures())
    RECORD.unlink(missing_ok=True)
    for cell in cells[runs_lost:]:
        append_run(RECORD, finished(cell))


def small_axes() -> dict[str, Any]:
    return WIDTHS | {"recipe": {"a": {"model.name": "a"}}}


def test_a_fit_through_fewer_runs_than_planned_says_so_and_one_of_too_few_is_not_kept(
    cells: list[Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = RECORD.parent / "fits.json"

    four_widths(tmp_path)
    parrotflow("table", "toy")
    assert "runs" not in capsys.readouterr().out.partition("law: ")[2].splitlines()[0]
    four_widths(tmp_path, runs_lost=1)
    parrotflow("table", "toy")
    assert " (95 %), 11 of 12 runs\n" in capsys.readouterr().out
    law = json.loads(stored.read_text())["law"]
    assert (law["runs"], law["expected"]) == (11, 12)

    four_widths(tmp_path, runs_lost=8)
    parrotflow("table", "toy")
    assert json.loads(stored.read_text()) == {}
    small_experiment(tmp_path, axes=small_axes(), claims=[], comparisons={}, fits={}, figures={})
    parrotflow("table", "toy")
    assert not stored.exists()
