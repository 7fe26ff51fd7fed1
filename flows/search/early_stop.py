"""The median rule: a run whose best value so far is worse than that of half the earlier runs is stopped."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from flows.experiments.cells import Cell
from flows.experiments.rows import Points
from flows.search.proposals import cell_of
from flows.search.search_file import Search
from stages.runtime.dotted import value_at

SHARE_DIGITS = 9
"""0.3 and 300 / 1000 are the same."""


@dataclass(frozen=True)
class EarlyStop:
    """What a run is compared with. It depends on the curves alone, not on when they are read."""

    curves: Sequence[Points]
    """Of finished runs, over the share of their steps; none is empty."""
    after: float
    """No run is stopped before this share."""
    quantile: float
    """Of their values, best first: 0.5 is the median."""
    lower: bool
    """Lower is better."""

    def stopped(self, points: Points) -> tuple[int, str] | None:
        """The first point at which a run with this curve is stopped, and why; the end of a run is no such point.

        Values of the earlier runs are interpolated between their points. A run is compared with those whose curve
        covers the share, and a value that is no number is worse than every other one.
        """
        sign = 1 if self.lower else -1
        best = math.inf
        for index, (share, value) in enumerate(points):
            best = min(best, sign * value) if math.isfinite(value) else best
            known = [
                np.interp(share, *zip(*curve, strict=True), left=math.nan, right=math.nan) for curve in self.curves
            ]
            others = [sign * other for other in known if math.isfinite(other)]
            if not self.after <= share < 1 or not others:
                continue
            bound = float(np.quantile(others, self.quantile))
            if not math.isfinite(value) or best > bound:
                what = "the median" if self.quantile == 0.5 else "the best quarter"
                return index, (
                    f"stopped after {share:.0%} of its steps: {sign * best:.5g} is worse than {what} of "
                    f"{len(others)} runs, {sign * bound:.5g}"
                )
        return None


def early_stop(search: Search, trials: Sequence[FrozenTrial], params: Mapping[str, Any]) -> EarlyStop | None:
    """The rule for the runs that follow these trials. None while there are too few to compare with."""
    rule, done = search.stop_early, [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if rule is None or len(done) < search.startup_runs:
        return None
    curves = [
        over_shares(search, cell_of("", search, trial.params), list(trial.intermediate_values.items()), params)
        for trial in done
        if trial.intermediate_values
    ]
    return EarlyStop(curves, rule.after, 0.5 if rule.worse_than == "median" else 0.25, lower=search.lower_is_better)


def over_shares(search: Search, cell: Cell, points: Points, params: Mapping[str, Any]) -> Points:
    """A curve over the share of the run's steps instead of the step."""
    steps = value_at(cell.params(params), search.stop_early.steps) if search.stop_early else 1
    return [(round(step / steps, SHARE_DIGITS), value) for step, value in points]
