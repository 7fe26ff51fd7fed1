"""What optuna proposes next, and its storage.

Proposals follow from the file and the results so far alone: each batch has a sampler of its own, seeded by the file's
seed and the number of results. So a search that was killed, or is repeated, proposes the same runs.
"""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState

from flows.experiments.cells import Cell, cell_id, joined, resolved
from flows.search.trials import Proposal, Trial, Value, finished
from stages.runtime.atomic import atomic_write

if TYPE_CHECKING:
    from flows.search.search_file import Dimension, Search

STATES = {"finished": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "failed": TrialState.FAIL}

SIGNIFICANT_DIGITS = 3
"""Of proposed numbers without a step: enough for what they do, and the same on machines whose last bits differ."""

REPEATS, MOST_REPEATS = 20, 1000
"""A proposal that was made before is drawn again: so often by the sampler, then at random. After the second number of
draws the space counts as exhausted."""

ENOUGH_FOR_IMPORTANCE = 20
"""Finished runs: of fewer the best tenth is a single run."""

optuna.logging.set_verbosity(optuna.logging.WARNING)


class ProposedCell(Cell):
    """A cell of which there is one: a search has no axis of seeds."""

    @property
    def label(self) -> str:
        """For people."""
        return ", ".join(self.levels.values())


def propose(name: str, search: "Search", trials: Sequence[Trial]) -> list[Proposal]:
    """The next batch, all of it new: `at_once` runs, fewer where the space has no more, none where it is exhausted."""
    study = study_of(search, trials, optuna.storages.InMemoryStorage())
    seed = int(np.random.SeedSequence([search.seed, len(trials)]).generate_state(1)[0])
    random = optuna.samplers.RandomSampler(seed=seed)
    tpe = optuna.samplers.TPESampler(
        n_startup_trials=search.startup_runs, multivariate=True, constant_liar=True, seed=seed
    )
    known = {trial.cell.id for trial in trials}
    proposals: list[Proposal] = []
    for repeats in range(MOST_REPEATS):
        study.sampler = random if search.sampler == "random" or repeats >= REPEATS + search.at_once else tpe
        asked = study.ask(distributions(search))
        values = {key: rounded(search.space[key], value) for key, value in asked.params.items()}
        number = len(trials) + len(proposals) + 1
        cell = cell_of(f"{name}-{number:04}", search, values)
        if cell.id in known:
            study.tell(asked, state=TrialState.FAIL)
            continue
        known.add(cell.id)
        proposals.append(Proposal(number, values, cell))
        if len(proposals) == search.at_once:
            break
    return proposals


def with_presets(search: "Search") -> "Search":
    """The search with the choices of conf/ replaced by their values. Raises UserError on an unknown one."""
    space = {
        key: item.model_copy(update={"choices": {name: resolved(level) for name, level in item.choices.items()}})
        if item.choices
        else item
        for key, item in search.space.items()
    }
    return search.model_copy(update={"base": resolved(search.base), "space": space})


def cell_of(label: str, search: "Search", values: Mapping[str, Value]) -> Cell:
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


def corners(name: str, search: "Search") -> list[Cell]:
    """Each bound and each choice once, the rest at its first: what is checked before anything runs.

    Raises UserError where two may set the same key.
    """
    joined({place: dict.fromkeys(_keys_set(place, item)) for place, item in search.space.items()})
    ends: dict[str, list[Value]] = {
        key: [*map(str, item.choices)] if item.choices else [rounded(item, bound) for bound in item.bounds]
        for key, item in search.space.items()
    }
    first = {key: values[0] for key, values in ends.items()}
    cells = [cell_of(name, search, first | {key: value}) for key, values in ends.items() for value in values]
    return list({cell.id: cell for cell in cells}.values())


def _keys_set(place: str, dimension: "Dimension") -> list[str]:
    return [key for choice in dimension.choices.values() for key in choice] if dimension.choices else [place]


def rounded(dimension: "Dimension", value: Any) -> Value:
    """A value as it is written into params.yaml, within its bounds."""
    if dimension.choices is not None:
        return str(value)
    if dimension.integer:
        return int(value)
    digits = SIGNIFICANT_DIGITS if dimension.step is None else 12
    low, high = dimension.bounds
    return min(max(float(f"{value:.{digits}g}"), low), high)


def distributions(search: "Search") -> dict[str, BaseDistribution]:
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


def study_of(search: "Search", trials: Iterable[Trial], storage: Any, name: str | None = None) -> optuna.Study:
    """An optuna study with these results."""
    direction = optuna.study.StudyDirection.MINIMIZE if search.lower_is_better else optuna.study.StudyDirection.MAXIMIZE
    study = optuna.create_study(storage=storage, study_name=name, direction=direction)
    for trial in trials:
        study.add_trial(_frozen(search, trial))
    return study


def _frozen(search: "Search", trial: Trial) -> FrozenTrial:
    points = {int(step): value for step, value in trial.points}
    last = trial.points[-1][1] if trial.state == "stopped" else None
    frozen = optuna.trial.create_trial(
        state=STATES[trial.state],
        value=trial.value if trial.state == "finished" else last,
        params=dict(trial.values),
        distributions=distributions(search),
        user_attrs={"cell": trial.cell.id, "experiment": trial.run.experiment, "message": trial.message},
        intermediate_values=points,
    )
    frozen.datetime_start = frozen.datetime_complete = datetime.fromisoformat(trial.run.ended)
    return frozen


def importances(search: "Search", trials: Sequence[Trial]) -> dict[str, float]:
    """How much each key sets the best tenth apart from the other finished runs; shares of 1, the largest first.

    By PED-ANOVA (Watanabe et al. 2023), which needs no scikit-learn. Empty for few runs.
    """
    if len(finished(trials, lower=True)) < ENOUGH_FOR_IMPORTANCE:
        return {}
    study = study_of(search, trials, optuna.storages.InMemoryStorage())
    with warnings.catch_warnings(action="ignore"):
        found = optuna.importance.get_param_importances(study)
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


class _Lines(BaseJournalBackend):
    """A journal in memory."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines[log_number_from:]]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.lines += map(json.dumps, logs)


def write_journal(path: Path, name: str, search: "Search", trials: Sequence[Trial]) -> None:
    """Write the results as a journal file of optuna, whole: it is derived from the record and never read here."""
    journal = _Lines()
    study_of(search, trials, optuna.storages.JournalStorage(journal), name)
    anonymous = [json.loads(line) | {"worker_id": name} for line in journal.lines]
    atomic_write(path, "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in anonymous))
