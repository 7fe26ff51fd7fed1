"""Claims hold, do not hold, or cannot be said; a file cannot run code."""

from pathlib import Path

import pytest

from flows.experiments.claims import check_claims, fit_of
from flows.experiments.experiment import Claim, Experiment
from flows.experiments.expressions import evaluate, parse, parse_condition
from flows.experiments.statistics import estimate
from stages.runtime.entry import UserError
from tests.flows.experiments.some_runs import some_data


@pytest.fixture(autouse=True)
def in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_claim_is_answered_with_the_numbers_it_was_decided_by(tmp_path: Path) -> None:
    experiment, data = some_data(tmp_path)

    answers = [(claim.answer, claim.because) for claim in check_claims(experiment, data)]

    assert [answer for answer, _ in answers] == ["holds", "does not hold", "holds", "holds"]
    assert answers[0][1].startswith("-0.3 [-0.3, -0.3], n = 3")
    assert answers[2][1].startswith("b 0.1038 [0.10")


def test_a_claim_whose_runs_are_missing_cannot_be_said(tmp_path: Path) -> None:
    experiment, data = some_data(tmp_path, lacking=[18])  # w8, a, seed 0

    claims = check_claims(experiment, data)

    assert [claim.answer for claim in claims] == ["cannot be said"] * 3 + ["holds"]
    assert claims[0].because == "missing: w8, a, seed 0 (failed)"


def with_claim(experiment: Experiment, holds_if: str) -> Experiment:
    return experiment.model_copy(update={"claims": [Claim(says="?", holds_if=holds_if)]})


@pytest.mark.parametrize(
    ("holds_if", "message"),
    [
        ('runs(loss, size="w9").mean < 1', "size has no level `w9`; there are w1, w2, w4, w8"),
        ('runs(loss, size="w1").mean < 1', "say which level of recipe"),
        ('runs(loss, depth="1").mean < 1', "no axis `depth`; there are size, recipe"),
        (
            'runs(loss, size="w1", recipe="a").n < 1 and runs(loss, size="w9").mean < 1',
            "size has no level `w9`; there are w1, w2, w4, w8",
        ),
    ],
)
def test_a_claim_about_what_the_grid_does_not_have_is_refused(tmp_path: Path, holds_if: str, message: str) -> None:
    experiment, data = some_data(tmp_path)

    with pytest.raises(UserError) as error:
        check_claims(with_claim(experiment, holds_if), data)

    assert message in str(error.value)


def test_one_seed_has_no_interval_to_claim_anything_by(tmp_path: Path) -> None:
    experiment, data = some_data(tmp_path)
    data = type(data)(tuple(row for row in data.rows if row.seed == 0))

    (claim,) = check_claims(with_claim(experiment, 'runs(loss, size="w1", recipe="a").high < 9'), data)

    assert claim.answer == "cannot be said"
    assert "one seed has no interval" in claim.because


def test_a_fit_through_cells_of_one_seed_has_no_interval_to_claim_anything_by(tmp_path: Path) -> None:
    experiment, data = some_data(tmp_path)
    lacks_one = type(data)(tuple(row for row in data.rows if row.seed == 0 or row.levels["size"] != "w1"))
    alone = type(data)(tuple(row for row in data.rows if row.seed == 0))

    for rows in (alone, lacks_one):
        (claim,) = check_claims(with_claim(experiment, "fit(law).b_low > 0"), rows)
        assert claim.answer == "cannot be said"
        assert claim.because.startswith("one seed has no interval (b 0.")


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "(1).real", "runs.__class__", "lambda: 1", "1 if 2 else 3", "a[0]", "f'{1}'", "1 == 1"],
)
def test_what_is_no_arithmetic_comparison_or_call_of_a_known_function_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(no |`\w+` is not allowed here)"):
        parse(text, ["a"], ["runs"], ["mean"])


def test_a_division_by_zero_in_a_claim_is_its_answer_and_the_other_claims_have_theirs(tmp_path: Path) -> None:
    experiment, data = some_data(tmp_path)
    mean = 'runs(loss, size="w1", recipe="a").mean'

    (claim,) = check_claims(with_claim(experiment, f"1 / ({mean} - {mean}) < 2"), data)

    assert claim.answer == "cannot be said"
    assert claim.because.startswith("float division by zero (5.01 [")


LOSS = "runs(loss).mean"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "is no comparison") for text in (LOSS, f"{LOSS} - 1", f"not {LOSS}", f"{LOSS} < 1 and {LOSS}")),
        (f"{LOSS} < 1 or not ({LOSS} < 2 and 1)", "`1` is no comparison"),
        ("1 < 2", "`1 < 2` asks nothing of the runs"),
        ("loss < law", "`loss` is no number; one of the runs is `runs"),
        (f"{LOSS} < 'x'", "`'x'` is no number"),
        ("runs(loss) < 1", r"`runs\(loss\)` is no number"),
        ("runs(loss).p < 1", r"runs\(...\) has no `.p`; there are mean, sd, low, high, n"),
        ("fit(law).mean < 1", r"fit\(...\) has no `.mean`"),
        ("fit(law, size='a').b < 1", "give nothing but its name"),
        ("runs(loss, cost).mean < 1", "runs: give one metric first; there are loss, cost"),
        ("runs(loss, size=1).mean < 1", "levels are texts"),
        ("runs(loss, size=['a', 'b']).mean < 1", "levels are texts"),
        ("runs(loss, **law).mean < 1", "levels are texts"),
        ("difference(loss, size='a').p < 1", "two different levels of an axis are compared"),
        ("difference(loss, size=['a', 'a']).p < 1", "two different levels of an axis are compared"),
        ("difference(loss, size=['a', 'b', 'c']).p < 1", "two different levels of an axis are compared"),
    ],
)
def test_a_claim_that_asks_nothing_of_the_runs_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_condition(text, ["loss", "cost"], ["law"])


def test_a_claim_is_made_of_comparisons_of_numbers_of_the_runs() -> None:
    body = parse_condition(f"not {LOSS} < 1 and ({LOSS} > 2 or 3 <= -{LOSS} * -{LOSS} < 5)", ["loss"], [])

    def answer(loss: float) -> bool:
        return bool(evaluate(body, {"loss": "loss", "runs": lambda metric: estimate([loss])}))

    assert [answer(loss) for loss in (0.0, 1.0, 2.0, 3.0)] == [False, False, True, True]


def test_arithmetic_is_pythons() -> None:
    assert evaluate(parse("-a ** 2 / 4 + 1 < 0 and not a < 1", ["a"]), {"a": 4.0}) is True


def test_a_fit_takes_all_runs_grouped_by_cell(tmp_path: Path) -> None:
    experiment, data = some_data(tmp_path)

    assert fit_of(experiment, "law", data).n == 24
