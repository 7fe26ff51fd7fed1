"""`parrotflow table` and `parrotflow cell`, from the record of a sweep to the files of a paper."""

import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli import app
from flows.experiments.cells import Cell
from flows.experiments.results import compare, compute, exponents, find_table
from flows.experiments.runs import append_run
from flows.experiments.statistics import PowerLaw
from stages.runtime.entry import UserError
from tests.flows.experiments.small_experiment import EXPERIMENT, small_experiment
from tests.flows.experiments.some_runs import WIDTHS, figures, finished
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
    assert made >= {"runs.csv", "tables/main.tex", "tables/recipes.csv", "figures/curves.pdf", "figures/points.svg"}
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}

    assert parrotflow("table", "toy") == 0
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before

    capsys.readouterr()
    assert parrotflow("cell", "toy/main", "large, b", "loss") == 0
    said = capsys.readouterr().out
    assert f"experiment {cells[9].name}, commit c{cells[9].id}\n" in said
    assert "seed 2: failed no luck" in said


def losses() -> list[float | None]:
    """Of each cell, as the table has them now."""
    numbers = compute("toy", "small").data.frame["loss"]
    return [None if math.isnan(number) else number for number in numbers]


def test_of_the_runs_of_a_cell_the_newest_counts(cells: list[Cell]) -> None:
    recorded = losses()
    append_run(RECORD, finished(cells[0], loss=9.0))
    append_run(RECORD, finished(cells[1]).model_copy(update={"state": "failed", "reports": {}}))

    assert losses() == [9.0, None, *recorded[2:]]


def test_a_run_made_with_todays_parameters_counts_before_any_made_with_others(cells: list[Cell]) -> None:
    before = losses()
    today = yaml.safe_load(Path("params.yaml").read_text())
    today["model"]["depth"] = 2
    Path("params.yaml").write_text(yaml.safe_dump(today))
    assert losses() == before, "what the runs did not have is no difference"

    other = finished(cells[0], loss=9.0)
    other.params["model"]["depth"] = 3
    append_run(RECORD, other)
    assert losses() == before

    for cell in cells:
        new = finished(cell, loss=8.0)
        new.params["model"]["depth"] = 2
        append_run(RECORD, new)
    append_run(RECORD, other)
    assert losses() == [8.0] * 12


def test_check_says_equal_or_where_it_differs_and_writes_nothing(
    cells: list[Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"runs\.csv: no such file; `parrotflow table NAME` makes it"):
        parrotflow("table", "toy", "--check")
    parrotflow("table", "toy")
    before = {path: path.read_bytes() for path in RECORD.parent.rglob("*.*") if path != RECORD}
    capsys.readouterr()

    assert parrotflow("table", "toy", "--check") == 0
    assert capsys.readouterr().out == "18 of 18 entries are equal\n"

    append_run(RECORD, finished(cells[0], loss=9.0))  # small, a
    assert parrotflow("table", "toy", "--check") == 1
    said = capsys.readouterr().out
    assert "main, small, a, loss (nats): different: 5.01 (n = 3), now 6.34 (n = 3)" in said
    assert "claims, b is better., answer: different: holds, now does not hold" in said
    assert "13 of 18 entries are equal" in said
    assert {path: path.read_bytes() for path in RECORD.parent.rglob("*.*") if path != RECORD} == before


def test_times_have_their_machine_in_the_footnotes_and_no_check_compares_them(
    cells: list[Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    time = {"label": "time", "unit": "min", "better": None, "source": "cell.json:cpu_seconds.train", "scale": 60}
    tables = {"times": {"caption": "Times.", "rows": ["size", "recipe"], "metrics": ["time", "loss"]}}
    small_experiment(tmp_path, metrics=EXPERIMENT["metrics"] | {"time": time}, tables=tables)

    def record(minutes: float) -> None:
        for number, cell in enumerate(cells):
            took = {"train": 60 * minutes} if number else {}  # restored
            run = finished(cell)
            run.reports["cell.json"] = {"machine": "a CPU, 2 cores", "seconds": took, "cpu_seconds": took}
            append_run(RECORD, run)

    record(2.0)
    parrotflow("table", "toy")
    table = (RECORD.parent / "tables/times.md").read_text()
    assert "| large | a | 2.000 | 3.80" in table
    assert "Times are of a CPU, 2 cores." in table
    assert "Runs that are missing: small, a, seed 0 (no time)." in table

    record(3.0)
    capsys.readouterr()
    assert parrotflow("table", "toy", "--check") == 0
    assert "time" not in capsys.readouterr().out


def four_widths(folder: Path, runs_lost: int = 0) -> None:
    """Let the project have the small experiment with enough sizes for its power law, some runs of it missing."""
    _, cells = small_experiment(folder, axes=small_axes(), claims=[], comparisons={}, figures=figures())
    RECORD.unlink(missing_ok=True)
    for cell in cells[runs_lost:]:
        append_run(RECORD, finished(cell))


def small_axes() -> dict[str, Any]:
    return WIDTHS | {"recipe": {"a": {"model.name": "a"}}}


def test_check_compares_the_exponents_of_fits_with_their_stored_intervals(
    cells: list[Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    four_widths(tmp_path)
    parrotflow("table", "toy")
    results = compute("toy", "small")
    stored = results.fits["law"]

    def verdict(then: PowerLaw | None, now: PowerLaw | None) -> str:
        old, new = (replace(results, fits={"law": law} if law else {}) for law in (then, now))
        return next(found.likeness for found in compare(old, new) if found.table == "fits")

    assert verdict(stored, stored) == "equal"
    assert verdict(stored, replace(stored, b=stored.b + 1e-9)) == "within intervals"
    assert verdict(stored, replace(stored, b=9.0)) == "different"
    assert verdict(stored, replace(stored, n=11)) == "different"
    alone = replace(stored, b_interval=(None, None))
    assert verdict(alone, replace(alone, b=stored.b + 1e-12)) == "equal as printed"
    assert verdict(alone, replace(alone, b=9.0)) == "different"
    assert verdict(None, stored) == "new"
    assert verdict(stored, None) == "gone"
    assert [entry for _, _, entry in exponents(results, {"loss"}).each()] == []
    assert len(list(exponents(results, {"law", "other"}).each())) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("toy/other", "toy/other: no such table; give one of: toy/intervals, "),
        ("experiments/toy/full/tables/main.md", "no such table"),
        (".", "no such table"),
    ],
)
def test_a_table_is_found_by_its_name_or_the_path_of_any_form(cells: list[Cell], name: str, message: str) -> None:
    with pytest.raises(UserError, match="none is made yet"):
        find_table("toy/main")
    parrotflow("table", "toy")

    for known in ("toy/main", "experiments/toy/small/tables/main.tex", "experiments/toy/small/tables/main"):
        assert (find_table(known).experiment, find_table(known).name) == ("toy", "main")
    with pytest.raises(UserError, match=message):
        find_table(name)


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


def test_a_run_whose_commit_is_not_here_leads_to_its_baseline_and_its_line_of_the_record(
    cells: list[Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    four_widths(tmp_path)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "start"], check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    lines = RECORD.read_text().splitlines()
    lines[1] = lines[1].replace(json.loads(lines[1])["commit"], head)
    RECORD.write_text("\n".join(line.replace('"start"', f'"{head}"') for line in lines) + "\n")
    parrotflow("table", "toy")
    capsys.readouterr()

    parrotflow("cell", "toy/main", "w1", "loss")
    elsewhere, here, _ = capsys.readouterr().out.split("  seed ")[1:]
    assert f"started from commit {head}\n" in elsewhere
    assert "this clone lacks the experiment's commit; `dvc exp pull` brings it" in elsewhere
    command = elsewhere.splitlines()[-1].partition(": ")[2]
    (line,) = subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout.splitlines()
    assert json.loads(line)["commit"] == json.loads(lines[0])["commit"]
    assert f"started from commit {head}\n" in here
    assert here.endswith(f": git show {head[:10]}:./params.yaml\n")
    assert "lacks" not in here
