"""`parrotflow table`, from the record of a sweep to the files of a paper."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.cli import app
from flows.experiments.cells import Cell
from flows.experiments.experiment import Claim, Condition
from flows.experiments.record import append_run
from flows.experiments.results import check_claims
from flows.experiments.runs import Tidy
from stages.runtime.errors import UserError
from tests.flows.experiments.small_experiment import small_experiment
from tests.flows.experiments.some_runs import SMALLEST, WIDTHS, finished, some_data

RECORD = Path("experiments/toy/runs.jsonl")


@pytest.fixture
def cells(tmp_path: Path) -> list[Cell]:
    """The record of 12 runs, of which the last has failed, without git, DVC and params.yaml."""
    _, cells = small_experiment(tmp_path)
    (tmp_path / "params.yaml").unlink()
    for cell in cells[:-1]:
        append_run(RECORD, finished(cell))
    append_run(RECORD, finished(cells[-1]).model_copy(update={"state": "failed", "reports": {}, "message": "no luck"}))
    return cells


def parrotflow(*words: str) -> int:
    """Run a command in this process; its exit code."""
    try:
        facts = app(words, result_action="return_value")
    except SystemExit as end:
        return int(end.code or 0)
    return int((facts or {}).get("exit_code", 0))


def test_from_the_record_of_a_sweep_to_tables_figures_and_claims(
    cells: list[Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    assert parrotflow("table", "toy") == 0
    said = capsys.readouterr().out
    assert "| large | b | 16.0 (2/3) |" in said
    assert "\n12 runs: 11 finished, 1 failed\nlaw: not fitted: a power law needs 3 distinct x values\n" in said
    assert "holds: b is better." in said
    folder = RECORD.parent
    assert json.loads((folder / "claims.json").read_text())[1]["answer"] == "cannot be said"
    made = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
    assert made >= {"runs.csv", "tables/main.tex", "tables/recipes.md", "figures/curves.pdf", "figures/points.svg"}
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}

    assert parrotflow("table", "toy") == 0
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


def test_a_table_or_figure_that_the_file_no_longer_has_is_removed(cells: list[Cell], tmp_path: Path) -> None:
    parrotflow("table", "toy")
    assert (RECORD.parent / "tables/recipes.tex").exists()

    small_experiment(tmp_path, comparisons={}, figures={})
    parrotflow("table", "toy")

    assert {path.stem for path in (RECORD.parent / "tables").iterdir()} == {"main"}
    assert not [*RECORD.parent.glob("figures/*")]


def four_widths(folder: Path, runs_lost: int = 0) -> None:
    """Let the project have the small experiment with enough sizes for its power law, some runs of it missing."""
    _, cells = small_experiment(folder, axes=small_axes(), claims=[], comparisons={})
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


def test_each_claim_is_answered_with_the_numbers_it_was_decided_by(tmp_path: Path) -> None:
    data = some_data(tmp_path)

    answers = [(claim.answer, claim.because) for claim in check_claims(data)]

    assert [answer for answer, _ in answers] == ["holds", "does not hold", "holds", "holds"]
    assert answers[0][1].startswith("-0.3 [-0.3, -0.3], n = 3")
    assert answers[2][1].startswith("0.1038 [0.0925")


def claiming(data: Tidy, *conditions: Condition) -> Tidy:
    claims = [Claim(says="?", holds_if=list(conditions))]
    return replace(data, experiment=data.experiment.model_copy(update={"claims": claims}))


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ({"size": "w9"}, "size has no level `w9`; choose from: w1, w2, w4, w8"),
        ({"size": "w1"}, "say which level of recipe"),
        ({"depth": "1"}, "no axis `depth`; choose from: size, recipe"),
    ],
)
def test_a_claim_about_what_the_grid_does_not_have_is_refused(
    tmp_path: Path, levels: dict[str, str | list[str]], message: str
) -> None:
    data = some_data(tmp_path)

    with pytest.raises(UserError, match=r"^claims\.0\.holds_if: ") as error:
        check_claims(claiming(data, Condition(mean="loss", levels=levels, value={"below": 1})))

    assert message in str(error.value)


def test_a_claim_of_several_conditions_needs_all_of_them(tmp_path: Path) -> None:
    data = some_data(tmp_path, lacking=[0])  # w1, a, seed 0
    conditions = {
        "holds": Condition(mean="loss", levels={"size": "w8", "recipe": "a"}, value={"below": "cost", "above": 0}),
        "does not hold": Condition(mean="loss", levels={"size": "w2", "recipe": "a"}, value={"below": "cost"}),
        "cannot be said": Condition(mean="loss", levels={"size": "w1", "recipe": "a"}, value={"below": 9}),
    }

    def answer(*names: str) -> tuple[str, str]:
        (checked,) = check_claims(claiming(data, *(conditions[name] for name in names)))
        return checked.answer, checked.because

    assert answer("holds")[0] == "holds"
    assert answer("holds")[1].endswith("; 64 [64, 64], n = 3"), "both means are told"
    assert answer("holds", "does not hold")[0] == "does not hold"
    assert answer("holds", "does not hold", "cannot be said") == ("cannot be said", "missing: w1, a, seed 0 (failed)")


def test_a_bound_within_the_interval_is_undecided(tmp_path: Path) -> None:
    data = some_data(tmp_path)
    levels: dict[str, Any] = {"size": ["w1", "w2"], "recipe": "a"}
    spread = Condition(difference="loss", levels=levels, high={"below": 0.65})
    missed = Condition(difference="loss", levels=levels, high={"below": 0.1})

    def answer(*conditions: Condition) -> str:
        return check_claims(claiming(data, *conditions))[0].answer

    assert answer(spread) == "undecided"
    assert answer(missed) == "does not hold"
    assert answer(spread, missed) == "does not hold"


def test_one_seed_has_no_interval_to_claim_anything_by(tmp_path: Path) -> None:
    data = some_data(tmp_path)
    data = replace(data, frame=data.frame[data.frame["seed"] == 0])

    (claim,) = check_claims(claiming(data, Condition(mean="loss", levels=SMALLEST, high={"below": 9})))

    assert claim.answer == "cannot be said"
    assert "one seed has no interval" in claim.because


def test_without_any_run_there_is_no_table(cells: list[Cell]) -> None:
    RECORD.unlink()

    with pytest.raises(UserError, match="toy: no runs are recorded yet; run `parrotflow sweep toy`"):
        app(("table", "toy"))
    assert [*RECORD.parent.iterdir()] == []
