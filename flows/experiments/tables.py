"""Makes tables from tidy data: means over seeds, and paired differences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import pandas as pd

from flows.experiments.runs import LEVELS, Tidy, at_levels, mixed_axes, paired_by_seed
from flows.experiments.statistics import SIGNIFICANT, Estimate, PairedDifference, estimate, holm, paired_difference
from stages.runtime.errors import UserError

if TYPE_CHECKING:
    from flows.experiments.experiment import TableSpec


@dataclass(frozen=True)
class Entry:
    """An entry of a table."""

    text: str
    """The number with its interval; empty if there is no number."""
    n: int
    """The number of runs, out of `expected`."""
    expected: int
    number: Estimate | None = None
    metric: str = ""
    """The metric's name in the file."""


@dataclass(frozen=True)
class Table:
    """Entries by row and column. A row has one level of each axis in the row headings."""

    experiment: str
    name: str
    caption: str
    row_headings: list[str]
    columns: list[str]
    rows: list[list[str]]
    entries: list[list[Entry]]
    footnotes: list[str]


def means_table(data: Tidy, name: str) -> Table:
    """A table of means over seeds. Raises UserError if an entry would mix cells of different levels."""
    experiment, table = data.experiment, data.experiment.tables[name]
    grouped = data.frame.groupby(table.rows, observed=True)
    groups = {tuple(map(str, levels)): rows for levels, rows in grouped}
    for key, rows in groups.items():
        if mixed := mixed_axes(rows, data.axes):
            raise UserError(
                f"tables.{name}: the row {', '.join(key)} mixes several levels of {', '.join(mixed)}; "
                "add that axis to `rows`"
            )
    entries = [[_mean(data, rows, metric) for metric in table.metrics] for rows in groups.values()]
    return Table(
        data.name,
        name,
        caption=table.caption,
        row_headings=[axis_name(axis) for axis in table.rows],
        columns=[experiment.metrics[metric].heading for metric in table.metrics],
        rows=[list(levels) for levels in groups],
        entries=entries,
        footnotes=_footnotes(data, table, entries),
    )


def axis_name(axis: str) -> str:
    """The printed name of an axis."""
    return axis.replace("_", " ")


def format_number(value: float | None, decimals: int, *, signed: bool = False) -> str:
    """Format a number; empty for None."""
    return "" if value is None else f"{value:{'+' if signed else ''},.{decimals}f}"


def decimals_of(data: Tidy, metric: str) -> int:
    """A metric's digits after the point."""
    asked = data.experiment.metrics[metric].decimals
    return (0 if (data.frame[metric].dropna() % 1 == 0).all() else 3) if asked is None else asked


def _mean(data: Tidy, rows: pd.DataFrame, metric: str) -> Entry:
    decimals = decimals_of(data, metric)
    mean = estimate(rows[metric].dropna().tolist())
    half_width = None if mean.high is None else mean.high - mean.mean
    text = format_number(mean.mean, decimals) + (f" ± {format_number(half_width, decimals)}" if half_width else "")
    if data.experiment.metrics[metric].interval:
        bounds = rows[[f"{metric} low", f"{metric} high"]].dropna().mean().dropna()
        text += f" [{', '.join(format_number(bound, decimals) for bound in bounds)}]" if len(bounds) else ""
    return Entry(text if mean.n else "", mean.n, len(rows), mean, metric)


def _footnotes(data: Tidy, table: "TableSpec", entries: list[list[Entry]]) -> list[str]:
    seeds = sorted(data.frame["seed"].unique())
    lines = [
        "Mean ± half-width of the 95 % interval of the mean over seeds, by Student's t; "
        f"n = {len(seeds)} seeds ({', '.join(map(str, seeds))})."
    ]
    if len(seeds) == 1:
        lines = [f"One run each, seed {seeds[0]}: nothing is said of other seeds."]
    if any("[" in entry.text for line in entries for entry in line):
        lines.append(
            "In brackets the runs' own 95 % interval over their held-out data, its bounds averaged over seeds."
        )
    return [*lines, *missing(data, table.metrics), *data.notes]


def missing(data: Tidy, metrics: Sequence[str]) -> list[str]:
    """A footnote that lists missing runs and metrics, and why; empty if nothing is missing."""
    absent: dict[tuple[str, str], list[str]] = {}
    for row in data.frame.to_dict("records"):
        why = ": ".join(filter(None, (row["state"], row["message"])))
        if row["state"] == "finished":
            without = [data.experiment.metrics[name].source for name in metrics if pd.isna(row[name])]
            why = f"no {', '.join(without)}" if without else ""
        if why:
            absent.setdefault((row[LEVELS], why), []).append(str(row["seed"]))
    named = [f"{levels}, seed {', '.join(seeds)} ({why})" for (levels, why), seeds in absent.items()]
    return [f"Runs that are missing: {'; '.join(named)}."] if named else []


def differences_table(data: Tidy, name: str) -> Table:
    """A table of differences paired by seed; its p values are corrected together."""
    comparison = data.experiment.comparisons[name]
    axis, baseline = comparison.axis, comparison.baseline
    if baseline not in data.levels(axis):
        levels = ", ".join(data.levels(axis))
        raise UserError(f"comparisons.{name}.baseline = {baseline!r}: {axis} has {levels}")
    others = [other for other in data.axes if other != axis]
    grid = product(*map(data.levels, others), [level for level in data.levels(axis) if level != baseline])
    lines = [dict(zip((*others, axis), levels, strict=True)) for levels in grid]
    metrics = [data.experiment.metrics[metric] for metric in comparison.metrics]
    base = {axis: baseline}
    differences = [_difference(data, line, line | base, metric) for line in lines for metric in comparison.metrics]
    corrected = holm([difference.p for _, difference in differences])
    # The entry of the difference shows how many runs are missing, that of p does not.
    flat = [
        part
        for (entry, difference), p in zip(differences, corrected, strict=True)
        for part in (replace(entry, number=replace(difference, p=p)), Entry(_p_text(p), entry.n, entry.n))
    ]
    count = sum(p is not None for p in corrected)
    corrected_for = f", Holm-corrected for {count} differences" if count > 1 else ""
    width = 2 * len(metrics)
    entries = [flat[start : start + width] for start in range(0, len(flat), width)]
    return Table(
        data.name,
        name,
        caption=comparison.caption,
        row_headings=[axis_name(item) for item in (*others, axis)],
        columns=[text for metric in metrics for text in (f"Δ {metric.heading}", f"p of Δ {metric.label}")],
        rows=[list(line.values()) for line in lines],
        entries=entries,
        footnotes=[
            f"Mean difference from {baseline}, paired by seed, with its 95 % interval by Student's t, and in percent "
            f"of the baseline. p of the paired t test{corrected_for}.",
            *missing(data, comparison.metrics),
            *data.notes,
        ],
    )


def _difference(data: Tidy, line: dict[str, str], base: dict[str, str], metric: str) -> tuple[Entry, PairedDifference]:
    """The difference between two combinations of levels, paired by seed, with its uncorrected p value."""
    ours, against = (at_levels(data.frame, levels) for levels in (line, base))
    values, reference = paired_by_seed(ours, against, metric)
    difference, mean = paired_difference(values, reference), estimate(reference).mean
    decimals = decimals_of(data, metric)
    bounds = [format_number(bound, decimals, signed=True) for bound in (difference.low, difference.high)]
    text = format_number(difference.mean, decimals, signed=True) + (f" [{', '.join(bounds)}]" if all(bounds) else "")
    text += f" ({100 * difference.mean / abs(mean):+.1f} %)" if mean else ""
    expected = len({*ours["seed"], *against["seed"]})
    return Entry(text if difference.n else "", difference.n, expected, metric=metric), difference


def _p_text(p: float | None) -> str:
    """Format with three decimals, or more if needed to show the side of the threshold: 0.0498, not 0.050."""
    if p is None:
        return ""
    if p < 0.001:
        return "<0.001"
    texts = (f"{p:.{decimals}f}" for decimals in range(3, 18))
    return next(text for text in texts if (float(text) < SIGNIFICANT) == (p < SIGNIFICANT))
