"""Claims: sentences of the paper with a condition on the runs (flows/experiments/expressions.py) that is checked.

.low and .high bound 95 %. A claim that needs a missing run, an interval of one seed or a division by zero is neither
true nor false. A fit has an interval if each of its cells has at least two seeds.
"""

import ast
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from flows.experiments.expressions import calls_in, evaluate, parse_condition
from flows.experiments.rows import Row, Tidy, paired_by_seed
from flows.experiments.statistics import Difference, Estimate, PowerLaw, estimate, fit_power_law, paired_difference
from stages.runtime.entry import UserError

if TYPE_CHECKING:
    from flows.experiments.experiment import Claim, Experiment

EstimateT = TypeVar("EstimateT", bound=Estimate)

Answer = Literal["holds", "does not hold", "cannot be said"]


@dataclass(frozen=True)
class CheckedClaim:
    """A claim with what the runs say of it."""

    says: str
    holds_if: str
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
    return [_checked(experiment, number, claim, data) for number, claim in enumerate(experiment.claims)]


def _checked(experiment: "Experiment", number: int, claim: "Claim", data: Tidy) -> CheckedClaim:
    body = parse_condition(claim.holds_if, experiment.metrics, experiment.fits)
    used: list[str] = []

    def runs(metric: str, /, **levels: str) -> Estimate:
        return noted(estimate(_values(_selected(data, levels), metric)))

    def difference(metric: str, /, **levels: str | list[str]) -> Difference:
        own, base = (
            _selected(data, {axis: level[side] if isinstance(level, list) else level for axis, level in levels.items()})
            for side in range(2)
        )
        for rows in (own, base):
            _values(rows, metric)
        return noted(paired_difference(*paired_by_seed(own, base, metric)))

    def fit(name: str, /) -> PowerLaw:
        needed = {experiment.fits[name].x, experiment.fits[name].y}
        if absent := [row.label for row in data.rows if not needed <= row.metrics.keys()]:
            raise MissingError(f"missing: {'; '.join(absent)}")
        try:
            law = fit_of(experiment, name, data)
        except ValueError as error:
            raise MissingError(str(error)) from None
        used.append(f"b {law.b:.4g}{_bounds(law.b_low, law.b_high)}")
        return law

    def noted(found: EstimateT) -> EstimateT:
        used.append(f"{found.mean:.4g}{_bounds(found.low, found.high)}, n = {found.n}")
        return found

    names = {name: name for name in (*experiment.metrics, *experiment.fits)}
    values = names | {"runs": runs, "difference": difference, "fit": fit}
    answer: Answer
    try:
        _require_levels(body, values)
        used.clear()
        answer = "holds" if evaluate(body, values) else "does not hold"
        because = "; ".join(used)
    except MissingError as error:
        answer, because = "cannot be said", str(error)
    except ArithmeticError as error:
        answer, because = "cannot be said", f"{error} ({'; '.join(used)})"
    except TypeError:  # arithmetic with None, all that is no number in a parsed condition
        answer, because = "cannot be said", f"one seed has no interval ({'; '.join(used)})"
    except UserError as error:
        raise UserError(f"claims.{number}.holds_if = {claim.holds_if!r}: {error}") from None
    return CheckedClaim(claim.says, claim.holds_if, answer, because)


def _require_levels(body: ast.expr, values: Mapping[str, Any]) -> None:
    """Raise UserError where the grid lacks a level, also of what the evaluation would not reach."""
    for call in calls_in(body):
        with suppress(MissingError):
            evaluate(call, values)


def _bounds(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{low:.4g}, {high:.4g}]"


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
