"""What a search shows: a line for each run, the best runs, what mattered, and how to take the best one over."""

import csv
import io
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flows.experiments.cells import Cell, resolved, set_params
from flows.search.trials import Trial, finished
from stages.formats.pages import table

if TYPE_CHECKING:
    from flows.search.search_file import Search

BEST = 10
"""Runs in the table."""


def progress(search: "Search", trials: Sequence[Trial], trial: Trial) -> str:
    """A run in one line."""
    best = finished(trials, lower=search.lower_is_better)[:1] == [trial]
    value = "" if trial.value is None else f" {trial.value:.6g}{' (best so far)' if best else ''}"
    return f"run {trial.number} {trial.state}{value}: {trial.cell.label}{f': {trial.message}' if trial.message else ''}"


def report(
    search: "Search", trials: Sequence[Trial], params: Mapping[str, Any], importances: Mapping[str, float]
) -> str:
    """The best runs as a Markdown table, the importance of each key, what failed, and how to use the best run."""
    best = finished(trials, lower=search.lower_is_better)
    states = Counter(trial.state for trial in trials)
    text = f"{len(trials)} runs: {', '.join(f'{count} {state}' for state, count in states.items()) or 'none yet'}.\n"
    for trial in trials:
        if trial.state == "failed":
            text += f"\nRun {trial.number} ({trial.cell.name}) failed: {trial.message}\n"
    commits = sorted({trial.run.baseline[:7] for trial in trials if trial.run.baseline})
    if len(commits) > 1:
        text += f"\nThe runs were started from {len(commits)} commits: {', '.join(commits)}.\n"
    if not best:
        return text
    measure = search.objective.source.partition(":")[2]
    rows = [
        [str(trial.number), f"{trial.value:.6g}", *map(str, trial.values.values()), trial.run.experiment]
        for trial in best[:BEST]
    ]
    text += f"\n{table(['run', f'{measure} ({search.objective.better} is better)', *search.space, 'experiment'], rows)}"
    if importances:
        found = ", ".join(f"{key} {share:.0%}" for key, share in importances.items())
        text += f"\nWhat sets the best tenth of the finished runs apart (PED-ANOVA): {found}.\n"
    text += (
        f"\nThe best run, {best[0].number}, becomes params.yaml with\n\n    {params_command(search, best[0], params)}\n"
    )
    if best[0].run.experiment:
        text += f"\nand its results with\n\n    dvc exp apply {best[0].run.experiment}\n"
    return text


def params_command(search: "Search", trial: Trial, params: Mapping[str, Any]) -> str:
    """The command that writes a trial's values into params.yaml: presets of conf/ by name, the rest by value."""
    chosen = search.base | {
        key: value
        for name, label in trial.values.items()
        for key, value in ((search.space[name].choices or {}).get(str(label)) or {}).items()
    }
    groups = {key: value for key, value in chosen.items() if "." not in key}
    after_groups = Cell("", "", {}, 0, resolved(groups)).params(params)
    words = [f"{group}={choice}" for group, choice in groups.items()]
    return shlex.join(["parrotflow", "params", *words, *set_params(after_groups, trial.cell.params(params))])


def runs_csv(search: "Search", trials: Sequence[Trial]) -> str:
    """A row for each run, in the order in which they were proposed."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    measure = search.objective.source.partition(":")[2]
    lines.writerow(["run", "cell", "state", measure, *search.space, "experiment", "commit", "message"])
    for trial in trials:
        value = "" if trial.value is None else trial.value
        known = [trial.run.experiment, trial.run.commit, trial.message]
        lines.writerow([trial.number, trial.cell.id, trial.state, value, *trial.values.values(), *known])
    return text.getvalue()
