"""What optuna proposes next, and how a proposal is judged when its run has ended.

Proposals follow from the file and the results so far alone: each batch has a sampler of its own, seeded by the file's
seed and the number of results. So a search that was killed, or is repeated, proposes the same runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from flows.experiments.cells import Cell, cell_id, joined, resolved
from flows.experiments.rows import CurvePoints, number_at
from flows.experiments.runs import Run
from flows.search.search_file import Dimension, Search
from flows.search.trials import EarlyStop, study_of
from stages.runtime.section import value_at

Value = str | int | float

SIGNIFICANT_DIGITS = 3
"""Of proposed numbers without a step: enough for what they do, and the same on machines whose last bits differ."""

SHARE_DIGITS = 9
"""0.3 and 300 / 1000 are the same."""

REPEATS, MOST_REPEATS = 20, 1000
"""A proposal that was made before is drawn again: so often by the sampler, then at random. After the second number of
draws the space counts as exhausted."""

optuna.logging.set_verbosity(optuna.logging.WARNING)


class ProposedCell(Cell):
    """A cell of which there is one: a search has no axis of seeds."""

    @property
    def label(self) -> str:
        """For people, without a seed."""
        return ", ".join(self.levels.values())


@dataclass(frozen=True)
class Proposal:
    """A run that is to be made, as a cell of an experiment."""

    values: Mapping[str, Value]
    """Of each key of the space: a number, or the name of a choice."""
    cell: Cell


def propose(name: str, search: Search, trials: Sequence[FrozenTrial]) -> list[Proposal]:
    """The next batch, all of it new: `at_once` runs, fewer where the space has no more, none where it is exhausted."""
    study = study_of(search, trials)
    seed = int(np.random.SeedSequence([search.seed, len(trials)]).generate_state(1)[0])
    random = optuna.samplers.RandomSampler(seed=seed)
    tpe = optuna.samplers.TPESampler(
        n_startup_trials=search.startup_runs, multivariate=True, constant_liar=True, seed=seed
    )
    known = {trial.user_attrs["cell"] for trial in trials}
    proposals: list[Proposal] = []
    for repeats in range(MOST_REPEATS):
        study.sampler = random if search.sampler == "random" or repeats >= REPEATS + search.at_once else tpe
        asked = study.ask(distributions(search))
        values = {key: rounded(search.space[key], value) for key, value in asked.params.items()}
        cell = cell_of(f"{name}-{len(trials) + len(proposals) + 1:04}", search, values)
        if cell.id in known:
            study.tell(asked, state=TrialState.FAIL)
            continue
        known.add(cell.id)
        proposals.append(Proposal(values, cell))
        if len(proposals) == search.at_once:
            break
    return proposals


def with_presets(search: Search) -> Search:
    """The search with the choices of conf/ replaced by their values. Raises UserError on an unknown one."""
    space = {}
    for key, item in search.space.items():
        choices = item.choices and {name: resolved(level) for name, level in item.choices.items()}
        space[key] = item.model_copy(update={"choices": choices})
    return search.model_copy(update={"base": resolved(search.base), "space": space})


def cell_of(label: str, search: Search, values: Mapping[str, Value]) -> Cell:
    """The run with these values. Raises UserError where two of them set the same key."""
    choices = {key: search.space[key].choices for key in values}
    overrides = search.base | joined(
        {key: named[str(values[key])] if named else {key: values[key]} for key, named in choices.items()}
    )
    # A section that is replaced whole comes before the keys within it.
    ordered = dict(sorted(overrides.items(), key=lambda item: item[0].count(".")))
    digits = cell_id(ordered)
    levels = {key: f"{key.rpartition('.')[2]} {value}" for key, value in values.items()}
    return ProposedCell(digits, f"{label}-{digits}", levels, search.seed, ordered)


def cell_of_trial(name: str, search: Search, trial: FrozenTrial) -> Cell:
    """The run of a trial of the search of this name, with its choices of conf/ replaced by their values."""
    return cell_of(f"{name}-{trial.number + 1:04}", search, trial.params)


def corners(name: str, search: Search) -> list[Cell]:
    """Each bound and each choice once, the rest at its first: what is checked before anything runs.

    Raises UserError where two may set the same key.
    """
    keys_set = {
        place: [key for choice in item.choices.values() for key in choice] if item.choices else [place]
        for place, item in search.space.items()
    }
    joined({place: dict.fromkeys(keys) for place, keys in keys_set.items()})
    ends: dict[str, list[Value]] = {
        key: [*map(str, item.choices)] if item.choices else [rounded(item, bound) for bound in item.bounds]
        for key, item in search.space.items()
    }
    first = {key: values[0] for key, values in ends.items()}
    cells = [cell_of(name, search, first | {key: value}) for key, values in ends.items() for value in values]
    return list({cell.id: cell for cell in cells}.values())


def rounded(dimension: Dimension, value: Any) -> Value:
    """A value as it is written into params.yaml, within its bounds."""
    if dimension.choices is not None:
        return str(value)
    if dimension.integer:
        return int(value)
    digits = SIGNIFICANT_DIGITS if dimension.step is None else 12
    low, high = dimension.bounds
    return min(max(float(f"{value:.{digits}g}"), low), high)


def distributions(search: Search) -> dict[str, BaseDistribution]:
    """The space in optuna's words."""
    found: dict[str, BaseDistribution] = {}
    for key, item in search.space.items():
        if item.choices is not None:
            found[key] = CategoricalDistribution(list(item.choices))
        elif item.integer:
            low, high = map(int, item.bounds)
            found[key] = IntDistribution(low, high, item.log, int(item.step or 1))
        else:
            found[key] = FloatDistribution(*item.bounds, item.log, item.step)
    return found


def early_stop(search: Search, trials: Sequence[FrozenTrial], params: Mapping[str, Any]) -> EarlyStop | None:
    """The rule for the runs that follow these trials. None while there are too few to compare with."""
    rule, done = search.stop_early, [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if rule is None or len(done) < search.startup_runs:
        return None
    curves = [
        over_shares(search, cell_of_trial("", search, trial), list(trial.intermediate_values.items()), params)
        for trial in done
        if trial.intermediate_values
    ]
    return EarlyStop(curves, rule.after, 0.5 if rule.worse_than == "median" else 0.25, lower=search.lower_is_better)


def over_shares(search: Search, cell: Cell, points: CurvePoints, params: Mapping[str, Any]) -> CurvePoints:
    """A curve over the share of the run's steps instead of the step."""
    steps = value_at(cell.params(params), search.stop_early.steps) if search.stop_early else 1
    return [(round(step / steps, SHARE_DIGITS), value) for step, value in points]


def judged(
    search: Search, earlier: Sequence[FrozenTrial], number: int, proposal: Proposal, run: Run, params: Mapping[str, Any]
) -> FrozenTrial:
    """The trial of this number, from 0: a proposal, made after earlier trials, whose run has ended.

    The early stop is decided again, from the whole curve: a run that ended before its curve was read is stopped where
    it would have been, so that the result does not depend on the moment of reading.
    """
    points = run.curves.get(search.stop_early.curve, []) if search.stop_early else []
    state, value, message = TrialState.COMPLETE, number_at(run.reports, search.objective.source), ""
    rule = early_stop(search, earlier, params)
    if rule and (stop := rule.stopped(over_shares(search, proposal.cell, points, params))):
        state, points, message = TrialState.PRUNED, points[: stop[0] + 1], stop[1]
    elif run.state != "finished":
        state, message = TrialState.FAIL, run.message or run.state
    elif value is None:
        state, message = TrialState.FAIL, f"its report has no number {search.objective.source}"
    trial = create_trial(
        state=state,
        value=value if state == TrialState.COMPLETE else None,
        params=dict(proposal.values),
        distributions=distributions(search),
        user_attrs={"cell": proposal.cell.id, "experiment": run.experiment, "message": message, "after": len(earlier)},
        intermediate_values={int(step): value for step, value in points},
    )
    trial.number = number
    return trial
