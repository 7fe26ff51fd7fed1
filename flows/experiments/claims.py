"""Claims: sentences of the paper, each with conditions on the runs that are checked.

A claim that needs a missing run, or an interval of one seed, is neither true nor false.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from flows.experiments.rows import Tidy, labels, mixed_axes, paired_by_seed
from flows.experiments.statistics import Estimate, PowerLaw, estimate, fit_power_law, paired_difference
from stages.runtime.entry import UserError

if TYPE_CHECKING:
    from flows.experiments.experiment import Condition

Answer = Literal["holds", "does not hold", "cannot be said"]

RELATIONS = {"below": operator.lt, "at_most": operator.le, "above": operator.gt, "at_least": operator.ge}


@dataclass(frozen=True)
class CheckedClaim:
    """A claim with what the runs say of it."""

    says: str
    holds_if: list[dict[str, Any]]
    answer: Answer
    because: str
    """What is missing, or the values that were compared."""


class MissingError(Exception):
    """What a claim needs is not there."""


def fit_of(data: Tidy, name: str) -> PowerLaw:
    """The power law of `fits`. Raises ValueError if there are too few runs, or values that are not positive."""
    fit = data.experiment.fits[name]
    known = data.frame.dropna(subset=[fit.x, fit.y])
    return fit_power_law(list(zip(known[fit.x], known[fit.y], strict=True)))


def check_claims(data: Tidy) -> list[CheckedClaim]:
    """Each claim of the file. Raises UserError on a level that the grid does not have."""
    checked = []
    for number, claim in enumerate(data.experiment.claims):
        try:
            found = [_checked(data, condition) for condition in claim.holds_if]
        except UserError as error:
            raise UserError(f"claims.{number}.holds_if: {error}") from None
        answers = [answer for answer, _ in found]
        answer: Answer = "does not hold" if "does not hold" in answers else "holds"
        if "cannot be said" in answers:
            answer, found = "cannot be said", [item for item in found if item[0] == "cannot be said"]
        conditions = [condition.model_dump(exclude_unset=True) for condition in claim.holds_if]
        checked.append(CheckedClaim(claim.says, conditions, answer, "; ".join(because for _, because in found)))
    return checked


def _checked(data: Tidy, condition: "Condition") -> tuple[Answer, str]:
    """The answer of one condition, and what is missing, or the values that were compared."""
    rows = [] if condition.exponent else [_selected(data, levels) for levels in condition.sides]
    try:
        found = _number(data, condition, rows)
        told, holds = [_told(found)], []
        for name, bounds in condition.bounds.items():
            value = getattr(found, "mean" if name == "value" else name)
            if value is None:
                return "cannot be said", f"one seed has no interval ({'; '.join(told)})"
            for relation, limit in bounds.items():
                bound = estimate(_values(rows[0], limit)) if isinstance(limit, str) else None
                told += [_told(bound)] if bound else []
                holds.append(RELATIONS[relation](value, bound.mean if bound else limit))
    except MissingError as error:
        return "cannot be said", str(error)
    return "holds" if all(holds) else "does not hold", "; ".join(told)


def _number(data: Tidy, condition: "Condition", rows: list[pd.DataFrame]) -> Estimate:
    """What a condition is about, with its 95 % interval. Raises MissingError where runs are missing."""
    if condition.exponent:
        fit = data.experiment.fits[condition.exponent]
        absent = data.frame[data.frame[[fit.x, fit.y]].isna().any(axis="columns")]
        if len(absent):
            raise MissingError(f"missing: {'; '.join(labels(absent))}")
        try:
            law = fit_of(data, condition.exponent)
        except ValueError as error:
            raise MissingError(str(error)) from None
        return Estimate(law.n, law.b, None, *law.b_interval)
    if condition.mean:
        return estimate(_values(rows[0], condition.mean))
    assert condition.difference is not None
    for side in rows:
        _values(side, condition.difference)
    return paired_difference(*paired_by_seed(rows[0], rows[1], condition.difference))


def _told(found: Estimate) -> str:
    bounds = "" if found.low is None else f" [{found.low:.4g}, {found.high:.4g}]"
    return f"{found.mean:.4g}{bounds}, n = {found.n}"


def _selected(data: Tidy, levels: Mapping[str, str]) -> pd.DataFrame:
    rows = data.select(levels)
    if mixed := mixed_axes(rows, data.axes):
        raise UserError(f"say which level of {', '.join(mixed)}")
    return rows


def _values(rows: pd.DataFrame, metric: str) -> list[float]:
    absent = rows[rows[metric].isna()]
    if len(absent) or not len(rows):
        told = "; ".join(labels(absent) + " (" + absent["state"] + ")")
        raise MissingError(f"missing: {told or metric}")
    return [float(value) for value in rows[metric]]
