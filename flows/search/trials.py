"""What became of the runs: trials of optuna, which its journal keeps, the rule that stops bad runs early, the report.

A trial's curve is in its intermediate values, by step. `user_attrs` of a trial has the id of its `cell`, its DVC
`experiment`, the `message` of one that was stopped or failed, and `after`: how many trials there were when it was
proposed.
"""

import json
import math
import shlex
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import optuna
import pandas as pd
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from flows.experiments.rows import CurvePoints
from flows.experiments.runs import Run
from flows.search.search_file import Search
from stages.formats.pages import table
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import UserError
from stages.runtime.section import differences

if TYPE_CHECKING:
    from flows.experiments.cells import Cell

STATES = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "stopped", TrialState.FAIL: "failed"}
"""Optuna's states for people."""

SETTINGS = "file"
"""The study's attribute that has the search file."""

ENOUGH_FOR_IMPORTANCE = 20
"""Finished runs: of fewer the best tenth is a single run."""

BEST = 10
"""Runs in the table."""


def open_study(path: Path, name: str, written: Search, *, write: bool) -> optuna.Study | None:
    """The study of a search, by its file, in its journal, which is made if it is to be written; None where it is not.

    Raises UserError for one that was made with another search file; only the budget and the question may change.
    """
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes() if path.is_file() else b""
        if not content.endswith(b"\n"):  # a kill has left half a line, which optuna would not read past
            atomic_write(path, content[: content.rfind(b"\n") + 1])
    elif not path.is_file():
        return None
    storage = JournalStorage(JournalFileBackend(str(path)))
    settings = written.model_dump(mode="json", exclude={"question", "budget"})
    if name in (known.study_name for known in storage.get_all_studies()):
        study = optuna.load_study(storage=storage, study_name=name)
    elif write:
        study = optuna.create_study(storage=storage, study_name=name, direction=written.direction)
    else:
        return None
    if write and SETTINGS not in study.user_attrs:  # a new study, or one that a kill has left without it
        study.set_user_attr(SETTINGS, settings)
    made_with = study.user_attrs.get(SETTINGS, settings)
    if moved := [key for key, *_ in differences("", made_with, settings)]:
        raise UserError(
            f"{path}: made with another search file: {', '.join(moved)}; put these values back, or move {path.parent} "
            "away to search anew"
        )
    return study


def study_of(search: Search, trials: Sequence[FrozenTrial]) -> optuna.Study:
    """A study in memory with these results."""
    study = optuna.create_study(direction=search.direction)
    study.add_trials(trials)
    return study


def importances(search: Search, trials: Sequence[FrozenTrial]) -> dict[str, float]:
    """How much each key sets the best tenth apart from the other finished runs; shares of 1, the largest first.

    By PED-ANOVA (Watanabe et al. 2023), which needs no scikit-learn. Empty for few runs.
    """
    if sum(trial.state == TrialState.COMPLETE for trial in trials) < ENOUGH_FOR_IMPORTANCE:
        return {}
    with warnings.catch_warnings(action="ignore"):
        found = optuna.importance.get_param_importances(study_of(search, trials))
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def ranked(search: Search, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The finished ones, the best first; of equal ones the earlier first."""
    done = [(trial.value, trial) for trial in trials if trial.value is not None and trial.state == TrialState.COMPLETE]
    return [trial for _, trial in sorted(done, key=lambda pair: pair[0] if search.lower_is_better else -pair[0])]


@dataclass(frozen=True)
class EarlyStop:
    """The median rule: a run whose best value so far is worse than that of half the earlier runs is stopped.

    It depends on the curves alone, not on when they are read.
    """

    curves: Sequence[CurvePoints]
    """Of finished runs, over the share of their steps; none is empty."""
    after: float
    """No run is stopped before this share."""
    quantile: float
    """Of their values, best first: 0.5 is the median."""
    lower: bool
    """Lower is better."""

    def stopped(self, points: CurvePoints) -> tuple[int, str] | None:
        """The first point at which a run with this curve is stopped, and why; the end of a run is no such point.

        Values of the earlier runs are interpolated between their points. A run is compared with those whose curve
        covers the share, and a value that is no number is worse than every other one.
        """
        sign = 1 if self.lower else -1
        best = math.inf
        for index, (share, value) in enumerate(points):
            best = min(best, sign * value) if math.isfinite(value) else best
            known = [
                np.interp(share, [x for x, _ in curve], [y for _, y in curve], left=math.nan, right=math.nan)
                for curve in self.curves
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


def progress(search: Search, trials: Sequence[FrozenTrial], trial: FrozenTrial, cell: "Cell") -> str:
    """A run in one line."""
    best = ranked(search, trials)[:1] == [trial]
    value = "" if trial.value is None else f" {trial.value:.6g}{' (best so far)' if best else ''}"
    why = f": {message}" if (message := trial.user_attrs["message"]) else ""
    return f"run {trial.number + 1} {STATES[trial.state]}{value}: {cell.label}{why}"


def report(search: Search, trials: Sequence[FrozenTrial], cells: Sequence["Cell"], runs: Mapping[str, Run]) -> str:
    """The best runs as a Markdown table, the importance of each key, what failed, and how to take the best one over.

    `search` is as it is in the file, `cells` are those of the trials, `runs` the recorded ones by their cells.
    """
    best = ranked(search, trials)
    states = Counter(STATES[trial.state] for trial in trials)
    text = f"{len(trials)} runs: {', '.join(f'{count} {state}' for state, count in states.items()) or 'none yet'}.\n"
    for trial, cell in zip(trials, cells, strict=True):
        if trial.state == TrialState.FAIL:
            text += f"\nRun {trial.number + 1} ({cell.name}) failed: {trial.user_attrs['message']}\n"
    made = [runs[cell.id] for cell in cells if cell.id in runs]
    commits = sorted({run.baseline[:7] for run in made if run.baseline})
    if len(commits) > 1:
        text += f"\nThe runs were started from {len(commits)} commits: {', '.join(commits)}.\n"
    if not best:
        return text
    measure = search.objective.source.partition(":")[2]
    rows = [
        [str(trial.number + 1), f"{trial.value:.6g}", *map(str, trial.params.values()), trial.user_attrs["experiment"]]
        for trial in best[:BEST]
    ]
    text += f"\n{table(['run', f'{measure} ({search.objective.better} is better)', *search.space, 'experiment'], rows)}"
    if shares := importances(search, trials):
        found = ", ".join(f"{key} {share:.0%}" for key, share in shares.items())
        text += f"\nWhat sets the best tenth of the finished runs apart (PED-ANOVA): {found}.\n"
    text += f"\nWhat run {best[0].number + 1} has of the space comes into params.yaml with\n\n"
    text += f"    {params_command(search, best[0])}\n"
    if experiment := best[0].user_attrs["experiment"]:
        text += f"\nand all of its params.yaml, with its results, with\n\n    dvc exp apply {experiment}\n"
    return text


def params_command(search: Search, trial: FrozenTrial) -> str:
    """The command that writes a run's values of the space into params.yaml: presets of conf/ by name."""
    chosen = (
        (search.space[name].choices or {}).get(str(value)) or {name: value} for name, value in trial.params.items()
    )
    words = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for own in chosen
        for key, value in own.items()
    ]
    return shlex.join(["parrotflow", "params", *words])


def runs_csv(search: Search, trials: Sequence[FrozenTrial], runs: Mapping[str, Run]) -> str:
    """A row for each run, in the order in which they were proposed."""
    measure = search.objective.source.partition(":")[2]
    rows = [
        [
            trial.number + 1,
            cell := trial.user_attrs["cell"],
            STATES[trial.state],
            trial.value,
            *trial.params.values(),
            trial.user_attrs["experiment"],
            runs[cell].commit if cell in runs else "",
            trial.user_attrs["message"],
        ]
        for trial in trials
    ]
    columns = ["run", "cell", "state", measure, *search.space, "experiment", "commit", "message"]
    return str(pd.DataFrame(rows, columns=columns).to_csv(index=False, lineterminator="\n"))
