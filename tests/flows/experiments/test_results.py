"""`parrotflow table` and `parrotflow cell`, from the record of a sweep to the files of a paper."""

import json
import os
from pathlib import Path

import pytest
import yaml

from flows.cli import app
from flows.experiments.cells import Cell
from flows.experiments.results import commands, compute
from flows.experiments.runs import CELLS, RUN_FILE, Run, append_run
from stages.runtime.entry import UserError
from tests.flows.experiments.small_experiment import small_experiment
from tests.flows.experiments.some_runs import finished
from tests.small_project import make_repository

DVC_YAML = """\
stages:
  train:
    cmd: 'false'
    params: [model]
    metrics: [scores.json: {cache: false}]
    plots: [curve.tsv]
"""

RECORD = Path("experiments/toy/small/runs.jsonl")
NEW_YEAR = 1_767_225_600
"""When the recorded runs ended, within a day."""


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """A project with the record of 12 runs, of which the last has failed."""
    monkeypatch.chdir(tmp_path)
    _, cells = small_experiment(tmp_path)
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    make_repository(tmp_path)
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


def test_from_the_record_of_a_sweep_to_tables_figures_claims_and_back_to_a_run(
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
    assert made >= {"runs.csv", "tables/main.tex", "tables/recipes.html", "figures/curves.pdf", "figures/points.svg"}
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}

    assert parrotflow("table", "toy") == 0
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before

    capsys.readouterr()
    assert parrotflow("cell", "toy/main", "large, b", "loss") == 0
    said = capsys.readouterr().out
    assert f"experiment {cells[9].name}, commit c{cells[9].id}" in said
    assert "seed 2: failed no luck" in said

    assert parrotflow("table", "toy", "--commands") == 0
    *_, command = capsys.readouterr().out.splitlines()
    assert command == (
        f"dvc exp run --queue --name {cells[11].name} -S model.name=b -S model.seed=2 -S model.width=4 train"
    )


def made_by_dvc_repro(run: Run, days_later: int) -> None:
    """Leave a run where matrix stages do, made some days after the recorded runs."""
    file = RECORD.parent / CELLS / run.experiment / RUN_FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(run.model_copy(update={"ended": ""}).model_dump_json())
    os.utime(file, (NEW_YEAR + 86_400 * days_later,) * 2)


def losses() -> list[float | None]:
    """Of each cell, as the table has them now."""
    return [row.metrics.get("loss") for row in compute("toy", "small").data.rows]


def test_of_the_runs_of_a_cell_the_newest_counts(cells: list[Cell]) -> None:
    recorded = losses()
    made_by_dvc_repro(finished(cells[0], loss=9.0), days_later=-5)
    made_by_dvc_repro(finished(cells[1], loss=9.0), days_later=5)
    made_by_dvc_repro(finished(cells[-1], loss=9.0), days_later=-5)

    assert losses() == [recorded[0], 9.0, *recorded[2:-1], None], "the last cell has failed since"


def test_a_run_made_with_todays_parameters_counts_before_any_made_with_others(cells: list[Cell]) -> None:
    before = losses()
    today = yaml.safe_load(Path("params.yaml").read_text())
    today["model"]["depth"] = 2
    Path("params.yaml").write_text(yaml.safe_dump(today))
    assert losses() == before, "what the runs did not have is no difference"

    for cell, days_later in ((cells[0], -5), (cells[1], 5)):
        other = finished(cell, loss=9.0)
        other.params["model"]["depth"] = 3
        made_by_dvc_repro(other, days_later)
    assert losses()[:2] == before[:2]

    for cell in cells:
        old = finished(cell)
        old.params["model"]["depth"] = 3
        append_run(RECORD, old)
        new = finished(cell, loss=9.0)
        new.params["model"]["depth"] = 2
        made_by_dvc_repro(new, days_later=-5)
    assert losses() == [9.0] * 12
    assert commands("toy", "small") == []


def test_check_says_equal_or_where_it_differs_and_writes_nothing(
    cells: list[Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"main\.json: no such table"):
        parrotflow("table", "toy", "--check")
    parrotflow("table", "toy")
    before = {path: path.read_bytes() for path in RECORD.parent.rglob("*.*") if path != RECORD}
    capsys.readouterr()

    assert parrotflow("table", "toy", "--check") == 0
    assert capsys.readouterr().out == "16 of 16 entries are equal\n"

    append_run(RECORD, finished(cells[0], loss=9.0))  # small, a
    assert parrotflow("table", "toy", "--check") == 1
    said = capsys.readouterr().out
    assert "main, small, a, loss (nats): different: 5.01 (n = 3), now 6.34 (n = 3)" in said
    assert "12 of 16 entries are equal" in said
    assert {path: path.read_bytes() for path in RECORD.parent.rglob("*.*") if path != RECORD} == before
