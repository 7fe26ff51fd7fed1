"""What a search shows: a line for each run, the best runs, what mattered, and how to take the best one over."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from optuna.trial import FrozenTrial, TrialState

from flows.experiments.cells import Cell, resolved, set_params
from flows.experiments.runs import Run
from flows.search.search_file import Search
from flows.search.trials import STATES, ranked
from stages.formats.pages import table

BEST = 10
"""Runs in the table."""


def progress(search: Search, trials: Sequence[FrozenTrial], trial: FrozenTrial, cell: Cell) -> str:
    """A run in one line."""
    best = ranked(search, trials)[:1] == [trial]
    value = "" if trial.value is None else f" {trial.value:.6g}{' (best so far)' if best else ''}"
    why = f": {message}" if (message := trial.user_attrs["message"]) else ""
    return f"run {trial.number + 1} {STATES[trial.state]}{value}: {cell.label}{why}"


def report(
    search: Search,
    trials: Sequence[FrozenTrial],
    cells: Sequence[Cell],
    runs: Mapping[str, Run],
    params: Mapping[str, Any],
    importances: Mapping[str, float],
) -> str:
    """The best runs as a Markdown table, the importance of each key, what failed, and how to use the best run.

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
    if importances:
        found = ", ".join(f"{key} {share:.0%}" for key, share in importances.items())
        text += f"\nWhat sets the best tenth of the finished runs apart (PED-ANOVA): {found}.\n"
    command = params_command(search, best[0].params, cells[best[0].number], params)
    text += f"\nThe best run, {best[0].number + 1}, becomes params.yaml with\n\n    {command}\n"
    if experiment := best[0].user_attrs["experiment"]:
        text += f"\nand its results with\n\n    dvc exp apply {experiment}\n"
    return text


def params_command(search: Search, values: Mapping[str, Any], cell: Cell, params: Mapping[str, Any]) -> str:
    """The command that writes a run's values into params.yaml: presets of conf/ by name, the rest by value."""
    chosen = search.base | {
        key: value
        for name, label in values.items()
        for key, value in ((search.space[name].choices or {}).get(str(label)) or {}).items()
    }
    groups = {key: value for key, value in chosen.items() if "." not in key}
    after_groups = Cell("", "", {}, 0, resolved(groups)).params(params)
    words = [f"{group}={choice}" for group, choice in groups.items()]
    return shlex.join(["parrotflow", "params", *words, *set_params(after_groups, cell.params(params))])


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
