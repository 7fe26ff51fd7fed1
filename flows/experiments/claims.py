"""Claims: sentences of the paper, each with conditions on the runs that are checked.

A claim that needs a missing run, or an interval of one seed, is neither true nor false. A fit has an interval if each
of its cells has at least two seeds.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from flows.experiments.rows import Row, Tidy, paired_by_seed
from flows.experiments.statistics import Estimate, PowerLaw, estimate, fit_power_law, paired_difference
from stages.runtime.entry import UserError

if TYPE_CHECKING:
    from flows.experiments.experiment import Condition, Experiment

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


def fit_of(experiment: "Experiment", name: str, data: Tidy) -> PowerLaw:
    """The power law of `fits`. Raises ValueError where there are too few runs, or values that are not positive."""
    fit = experiment.fits[name]
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for row in data.rows:
        if fit.x in row.metrics and fit.y in row.metrics:
            groups.setdefault(tuple(row.levels.values()), []).append((row.metrics[fit.x], row.metrics[fit.y]))
    means = [(sum(x for x, _ in points) / len(points), [y for _, y in points]) for points in groups.values()]
    return fit_power_law(means, offset=fit.offset)


def check_claims(experiment: "Experiment", data: Tidy) -> list[CheckedClaim]:
    """Each claim of the file. Raises UserError on a level that the grid does not have."""
    checked = []
    for number, claim in enumerate(experiment.claims):
        try:
            found = [_checked(experiment, condition, data) for condition in claim.holds_if]
        except UserError as error:
            raise UserError(f"claims.{number}.holds_if: {error}") from None
        answers = [answer for answer, _ in found]
        answer: Answer = "does not hold" if "does not hold" in answers else "holds"
        if "cannot be said" in answers:
            answer, found = "cannot be said", [item for item in found if item[0] == "cannot be said"]
        conditions = [condition.model_dump(exclude_unset=True) for condition in claim.holds_if]
        checked.append(CheckedClaim(claim.says, conditions, answer, "; ".join(because for _, because in found)))
    return checked


def _checked(experiment: "Experiment", condition: "Condition", data: Tidy) -> tuple[Answer, str]:
    """The answer of one condition, and what is missing, or the values that were compared."""
    rows = [] if condition.exponent else [_selected(data, levels) for levels in condition.sides]
    try:
        found = _number(experiment, condition, rows, data)
        told, holds = [_told(found)], []
        for name, bounds in condition.bounds.items():
            value = getattr(found, "mean" if name == "value" else name)
            if value is None:
                return "cannot be said", f"one seed has no interval ({'; '.join(told)})"
            for relation, limit in bounds.model_dump(exclude_none=True).items():
                bound = estimate(_values(rows[0], limit)) if isinstance(limit, str) else None
                told += [_told(bound)] if bound else []
                holds.append(RELATIONS[relation](value, bound.mean if bound else limit))
    except MissingError as error:
        return "cannot be said", str(error)
    return "holds" if all(holds) else "does not hold", "; ".join(told)


def _number(experiment: "Experiment", condition: "Condition", rows: list[list[Row]], data: Tidy) -> Estimate:
    """What a condition is about, with its 95 % interval. Raises MissingError where runs are missing."""
    if condition.exponent:
        fit = experiment.fits[condition.exponent]
        if absent := [row.label for row in data.rows if not {fit.x, fit.y} <= row.metrics.keys()]:
            raise MissingError(f"missing: {'; '.join(absent)}")
        try:
            law = fit_of(experiment, condition.exponent, data)
        except ValueError as error:
            raise MissingError(str(error)) from None
        return Estimate(law.n, law.b, None, law.b_low, law.b_high)
    if condition.mean:
        return estimate(_values(rows[0], condition.mean))
    assert condition.difference is not None
    for side in rows:
        _values(side, condition.difference)
    return paired_difference(*paired_by_seed(rows[0], rows[1], condition.difference))


def _told(found: Estimate) -> str:
    bounds = "" if found.low is None else f" [{found.low:.4g}, {found.high:.4g}]"
    return f"{found.mean:.4g}{bounds}, n = {found.n}"


def _selected(data: Tidy, levels: Mapping[str, str]) -> list[Row]:
    rows = data.select(levels)
    if len({row.seed for row in rows}) < len(rows):
        open_axes = [axis for axis in rows[0].levels if len({row.levels[axis] for row in rows}) > 1]
        raise UserError(f"say which level of {', '.join(open_axes)}")
    return rows


def _values(rows: list[Row], metric: str) -> list[float]:
    absent = [f"{row.label} ({row.state})" for row in rows if metric not in row.metrics]
    if absent or not rows:
        raise MissingError(f"missing: {'; '.join(absent) or metric}")
    return [row.metrics[metric] for row in rows]
