"""Claims hold, do not hold, or cannot be said."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from flows.experiments.claims import check_claims, fit_of
from flows.experiments.experiment import Claim, Condition
from flows.experiments.rows import Tidy
from stages.runtime.entry import UserError
from tests.flows.experiments.some_runs import SMALLEST, some_data


@pytest.fixture(autouse=True)
def in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_claim_is_answered_with_the_numbers_it_was_decided_by(tmp_path: Path) -> None:
    data = some_data(tmp_path)

    answers = [(claim.answer, claim.because) for claim in check_claims(data)]

    assert [answer for answer, _ in answers] == ["holds", "does not hold", "holds", "holds"]
    assert answers[0][1].startswith("-0.3 [-0.3, -0.3], n = 3")
    assert answers[2][1].startswith("0.1038 [0.0925")


def test_a_claim_whose_runs_are_missing_cannot_be_said(tmp_path: Path) -> None:
    data = some_data(tmp_path, lacking=[18])  # w8, a, seed 0

    claims = check_claims(data)

    assert [claim.answer for claim in claims] == ["cannot be said"] * 3 + ["holds"]
    assert claims[0].because == "missing: w8, a, seed 0 (failed)"


def claiming(data: Tidy, *conditions: Condition) -> Tidy:
    claims = [Claim(says="?", holds_if=list(conditions))]
    return replace(data, experiment=data.experiment.model_copy(update={"claims": claims}))


def with_claim(data: Tidy, **condition: Any) -> Tidy:
    return claiming(data, Condition(**condition))


def at(data: Tidy, rows: "pd.Series[bool]") -> Tidy:
    return replace(data, frame=data.frame[rows])


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ({"size": "w9"}, "size has no level `w9`; there are w1, w2, w4, w8"),
        ({"size": "w1"}, "say which level of recipe"),
        ({"depth": "1"}, "no axis `depth`; there are size, recipe"),
    ],
)
def test_a_claim_about_what_the_grid_does_not_have_is_refused(
    tmp_path: Path, levels: dict[str, str | list[str]], message: str
) -> None:
    data = some_data(tmp_path)

    with pytest.raises(UserError, match=r"^claims\.0\.holds_if: ") as error:
        check_claims(with_claim(data, mean="loss", levels=levels, value={"below": 1}))

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


def test_one_seed_has_no_interval_to_claim_anything_by(tmp_path: Path) -> None:
    data = some_data(tmp_path)
    data = at(data, data.frame["seed"] == 0)

    (claim,) = check_claims(with_claim(data, mean="loss", levels=SMALLEST, high={"below": 9}))

    assert claim.answer == "cannot be said"
    assert "one seed has no interval" in claim.because


def test_a_fit_takes_all_runs(tmp_path: Path) -> None:
    data = some_data(tmp_path)

    assert fit_of(data, "law").n == 24
