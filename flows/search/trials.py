"""What is proposed, and what became of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from flows.search.early_stop import EarlyStop, Points
from stages.runtime.section import value_at

if TYPE_CHECKING:
    from flows.experiments.cells import Cell
    from flows.experiments.runs import Run
    from flows.search.search_file import Search

Value = str | int | float

State = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class Proposal:
    """A run that is to be made."""

    number: int
    """From 1, in the order in which they are proposed."""
    values: Mapping[str, Value]
    """Of each key of the space: a number, or the name of a choice."""
    cell: "Cell"
    """As a cell of an experiment, by which it is run."""


@dataclass(frozen=True)
class Trial(Proposal):
    """A proposal with its run."""

    run: "Run"
    state: State
    """Stopped: early, by the rule of the file."""
    value: float | None
    """The objective; none unless it is finished."""
    points: Points
    """Its curve, up to where it was stopped."""
    message: str
    """Why it was stopped, or how it failed."""


def finished(trials: Sequence[Trial], *, lower: bool) -> list[Trial]:
    """Those with a value, the best first; of equal ones the earlier first."""
    done = [(trial.value, trial) for trial in trials if trial.value is not None]
    return [trial for _, trial in sorted(done, key=lambda pair: pair[0] if lower else -pair[0])]


def early_stop(search: "Search", trials: Sequence[Trial], params: Mapping[str, Any]) -> EarlyStop | None:
    """The rule for the runs that follow these trials. None while there are too few to compare with."""
    rule = search.stop_early
    if rule is None:
        return None
    curves = [curve_over_shares(search, trial.cell, trial.points, params) for trial in finished(trials, lower=True)]
    if len(curves) < search.startup_runs:
        return None
    return EarlyStop(curves, rule.after, 0.5 if rule.worse_than == "median" else 0.25, lower=search.lower_is_better)


def curve_over_shares(search: "Search", cell: "Cell", points: Points, params: Mapping[str, Any]) -> Points:
    """A curve over the share of the run's steps instead of the step."""
    steps = value_at(cell.params(params), search.stop_early.steps) if search.stop_early else 1
    return [(step / steps, value) for step, value in points]


def judged(
    search: "Search", earlier: Sequence[Trial], proposal: Proposal, run: "Run", params: Mapping[str, Any]
) -> Trial:
    """A proposal whose run has ended, after the trials of earlier batches.

    The early stop is decided again, from the whole curve: a run that ended before its curve was read is stopped where
    it would have been, so that the result does not depend on the moment of reading.
    """
    points = run.curves.get(search.stop_early.curve, []) if search.stop_early else []
    rule = early_stop(search, earlier, params)
    stop = rule.stopped(curve_over_shares(search, proposal.cell, points, params)) if rule else None
    if stop:
        index, why = stop
        return Trial(**vars(proposal), run=run, state="stopped", value=None, points=points[: index + 1], message=why)
    if run.state != "finished":
        message = run.message or run.state
        return Trial(**vars(proposal), run=run, state="failed", value=None, points=points, message=message)
    value = number_of(run, search.objective.source)
    message = "" if value is not None else f"its report has no number {search.objective.source}"
    state: State = "failed" if value is None else "finished"
    return Trial(**vars(proposal), run=run, state=state, value=value, points=points, message=message)


def number_of(run: "Run", source: str) -> float | None:
    """The number at FILE:KEY of a run's reports; none where there is no finite one."""
    file, _, key = source.partition(":")
    value = value_at(run.reports.get(file), key)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None
