"""`parrotflow table` and `parrotflow cell`, from the record of a sweep to the files of a paper."""

import json
from pathlib import Path

import pytest

from flows.cli import app
from flows.experiments.cells import Cell
from flows.experiments.runs import append_run
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
