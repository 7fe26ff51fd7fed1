"""`parrotflow table NAME`: tables, figures, fits and checked claims from the recorded runs.

They are written to `experiments/NAME/`: runs.csv (tidy data), and made from it tables/ (.tex, .md), figures/ (.pdf,
.svg), fits.json and claims.json. A claim is undecided if it needs a missing run, or an interval with only one seed.
"""

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
from rich.console import Console
from rich.markdown import Markdown

from flows.experiments.cells import cells_of, read_experiment
from flows.experiments.experiment import Condition, ExperimentName, bare_name, experiment_path, results_folder
from flows.experiments.forms import markdown, write_figure, write_forms
from flows.experiments.record import RUNS_FILE, Run, last_runs
from flows.experiments.runs import Tidy, labels, lacking, mixed_axes, paired_by_seed, rows_csv, tidy
from flows.experiments.statistics import Estimate, PowerLaw, estimate, fit_power_law, paired_difference
from flows.experiments.tables import Table, differences_table, means_table
from flows.run.outcome import AsJson
from stages.formats.reports import write_json
from stages.runtime.atomic import atomic_write
from stages.runtime.errors import UserError

RUNS, TABLES, FIGURES, FITS, CLAIMS = "runs.csv", "tables", "figures", "fits.json", "claims.json"
"""Names in the folder of an experiment's results. The others are made from the first and never read."""

Answer = Literal["cannot be said", "does not hold", "undecided", "holds"]
"""Undecided: it does not hold, but the interval contains the bound. Of several conditions the first of these counts."""

RELATIONS = {"below": operator.lt, "at_most": operator.le, "above": operator.gt, "at_least": operator.ge}


@dataclass(frozen=True)
class CheckedClaim:
    """A claim and whether it holds."""

    says: str
    holds_if: list[dict[str, Any]]
    answer: Answer
    because: str
    """The missing runs, or the values that were compared."""


@dataclass(frozen=True)
class Results:
    """Everything computed from the runs."""

    data: Tidy
    tables: list[Table]
    fits: dict[str, PowerLaw]
    unfitted: dict[str, str]
    """Fit -> why it failed, such as too few runs."""
    claims: list[CheckedClaim]


def table(name: ExperimentName, /, *, as_json: AsJson = False) -> dict[str, Any]:
    """Make an experiment's tables and figures from its recorded runs, and check its claims.

    Parameters
    ----------
    name
        A file in experiments/ without its suffix, or a path.
    """
    results, console = compute(name), Console(highlight=False)
    if {*results.data.frame["state"]} == {"not run"}:
        raise UserError(f"{name}: no runs are recorded yet; run `parrotflow sweep {name}`")
    written = write_experiment_results(name, results)
    for text in map(markdown, results.tables):
        console.print(Markdown(text) if console.is_terminal else text, markup=False, soft_wrap=not console.is_terminal)
    print("\n".join([*summary_lines(results), *map(str, written)]))
    return table_facts(name, results)


def compute(name: str, runs: Iterable[Run] | None = None) -> Results:
    """Tables, fits and claims of `runs`, by default the recorded ones. Raises UserError if the file has faults."""
    experiment = read_experiment(name)
    cells = cells_of(name, experiment)
    if runs is None:
        runs = last_runs(results_folder(name) / RUNS_FILE).values()
    fits: dict[str, PowerLaw] = {}
    unfitted: dict[str, str] = {}
    try:
        data = tidy(bare_name(name), experiment, cells, runs)
        for fit in experiment.fits:
            try:
                fits[fit] = fit_of(data, fit)
            except ValueError as error:
                unfitted[fit] = str(error)
        tables = [means_table(data, table) for table in experiment.tables]
        tables += [differences_table(data, comparison) for comparison in experiment.comparisons]
        return Results(data, tables, fits, unfitted, check_claims(data))
    except UserError as error:
        raise UserError(f"{experiment_path(name)}: {error}") from None


def write_experiment_results(name: str, results: Results) -> list[Path]:
    """Write all files atomically, and remove tables, figures and fits that the experiment no longer defines."""
    folder = results_folder(name)
    atomic_write(folder / RUNS, rows_csv(results.data))
    written = [folder / RUNS]
    for table in results.tables:
        written += write_forms(folder / TABLES, table)
    for figure in results.data.experiment.figures:
        written += write_figure(folder / FIGURES, results.data, figure, results.fits)
    if results.data.experiment.fits:
        expected = len(results.data.frame)
        laws = {
            name: {"a": law.a, "b": law.b, "b_interval_95": list(law.b_interval), "runs": law.n, "expected": expected}
            for name, law in results.fits.items()
        }
        write_json(folder / FITS, laws)
        written.append(folder / FITS)
    if results.claims:
        write_json(folder / CLAIMS, [asdict(claim) for claim in results.claims])
        written.append(folder / CLAIMS)
    drawn = {*folder.glob(f"{TABLES}/*.*"), *folder.glob(f"{FIGURES}/*.*")}
    for path in {*drawn, folder / FITS, folder / CLAIMS} - {*written}:
        path.unlink(missing_ok=True)
    return written


def summary_lines(results: Results) -> Sequence[str]:
    """A summary of the runs, the fits and the claims."""
    frame = results.data.frame
    states = ", ".join(f"{count} {state}" for state, count in Counter(frame["state"]).items())
    lines = [f"{len(frame)} runs: {states}", *results.data.notes]
    for name, law in results.fits.items():
        count, (low, high) = lacking(law.n, len(frame)), law.b_interval
        words = f"{law.a:.4g} x^{-law.b:.4g}, exponent in [{low:.4g}, {high:.4g}] (95 %)"
        lines.append(f"{name}: {words}{count and f', {count}'}")
    lines += [f"{name}: not fitted: {why}" for name, why in results.unfitted.items()]
    return [*lines, *(f"{claim.answer}: {claim.says} ({claim.because})" for claim in results.claims)]


def table_facts(name: str, results: Results) -> dict[str, Any]:
    """The numbers of each table with their intervals, and the claims, for `--json`."""
    metrics = {
        table.name: [
            {"levels": dict(zip(table.row_headings, row, strict=True))}
            | {entry.metric: asdict(entry.number) for entry in line if entry.number}
            for row, line in zip(table.rows, table.entries, strict=True)
        ]
        for table in results.tables
    }
    claims, states = [asdict(claim) for claim in results.claims], Counter(results.data.frame["state"])
    record = (results_folder(name) / RUNS_FILE).as_posix()
    return {"cells": states, "metrics": metrics, "claims": claims, "record": record}


class MissingError(Exception):
    """A claim lacks runs or metrics."""


def fit_of(data: Tidy, name: str) -> PowerLaw:
    """The power law of a fit. Raises ValueError if there are too few runs or a value is not positive."""
    fit = data.experiment.fits[name]
    known = data.frame.dropna(subset=[fit.x, fit.y])
    return fit_power_law(list(zip(known[fit.x], known[fit.y], strict=True)))


def check_claims(data: Tidy) -> list[CheckedClaim]:
    """Check each claim of the file. Raises UserError for a level that the grid does not have."""
    checked = []
    for number, claim in enumerate(data.experiment.claims):
        try:
            results = [_checked(data, condition) for condition in claim.holds_if]
        except UserError as error:
            raise UserError(f"claims.{number}.holds_if: {error}") from None
        answer = min((answer for answer, _ in results), key=get_args(Answer).index)
        if answer == "cannot be said":
            results = [result for result in results if result[0] == answer]
        conditions = [condition.model_dump(exclude_unset=True) for condition in claim.holds_if]
        checked.append(CheckedClaim(claim.says, conditions, answer, "; ".join(because for _, because in results)))
    return checked


def _checked(data: Tidy, condition: Condition) -> tuple[Answer, str]:
    """The answer for a condition, with the compared values or what is missing."""
    rows = [] if condition.exponent else [_selected(data, levels) for levels in condition.sides]
    try:
        number = _number(data, condition, rows)
        texts, answers = [_text(number)], list[Answer]()
        for name, bounds in condition.bounds.items():
            value = getattr(number, "mean" if name == "value" else name)
            if value is None:
                return "cannot be said", f"one seed has no interval ({'; '.join(texts)})"
            for relation, limit in bounds.items():
                bound = estimate(_values(rows[0], limit)) if isinstance(limit, str) else None
                texts += [_text(bound)] if bound else []
                at = bound.mean if bound else float(limit)
                holds = RELATIONS[relation](value, at)
                is_open = number.low is not None and number.high is not None and number.low <= at <= number.high
                answers.append("holds" if holds else "undecided" if is_open else "does not hold")
    except MissingError as error:
        return "cannot be said", str(error)
    return min(answers, key=get_args(Answer).index), "; ".join(texts)


def _number(data: Tidy, condition: Condition, rows: list[pd.DataFrame]) -> Estimate:
    """The number of a condition, with its 95 % interval. Raises MissingError if runs are missing."""
    if condition.exponent:
        fit = data.experiment.fits[condition.exponent]
        absent = data.frame[data.frame[[fit.x, fit.y]].isna().any(axis="columns")]
        if len(absent):
            raise MissingError(f"missing: {'; '.join(labels(absent))}")
        try:
            law = fit_of(data, condition.exponent)
        except ValueError as error:
            raise MissingError(str(error)) from None
        return Estimate(law.n, law.b, *law.b_interval)
    if condition.mean:
        return estimate(_values(rows[0], condition.mean))
    assert condition.difference is not None
    for side in rows:
        _values(side, condition.difference)
    return paired_difference(*paired_by_seed(rows[0], rows[1], condition.difference))


def _text(number: Estimate) -> str:
    bounds = "" if number.low is None else f" [{number.low:.4g}, {number.high:.4g}]"
    return f"{number.mean:.4g}{bounds}, n = {number.n}"


def _selected(data: Tidy, levels: Mapping[str, str]) -> pd.DataFrame:
    rows = data.select(levels)
    if mixed := mixed_axes(rows, data.axes):
        raise UserError(f"say which level of {', '.join(mixed)}")
    return rows


def _values(rows: pd.DataFrame, metric: str) -> list[float]:
    absent = rows[rows[metric].isna()]
    if len(absent) or not len(rows):
        runs = "; ".join(labels(absent) + " (" + absent["state"] + ")")
        raise MissingError(f"missing: {runs or metric}")
    return [float(value) for value in rows[metric]]
