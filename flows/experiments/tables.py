"""From tidy data to tables: means over seeds, and paired differences."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import pandas as pd

from flows.experiments.rows import LEVELS, Tidy, at_levels, mixed_axes, paired_by_seed
from flows.experiments.statistics import SIGNIFICANT, Estimate, estimate, holm, is_best, paired_difference, t_interval
from stages.runtime.entry import UserError

if TYPE_CHECKING:
    from flows.experiments.experiment import TableSpec


MOST_DECIMALS = 12


@dataclass(frozen=True)
class Entry:
    """One entry: what is printed, the numbers, and the runs."""

    text: str
    """The number; empty where there is none."""
    n: int
    """Runs that count, of those expected."""
    expected: int
    value: float | None
    """The mean, the mean difference or a p value."""
    low: float | None
    """Of the t interval: of a mean that of 95 %, of a difference that at the level of its test."""
    high: float | None
    sd: float | None
    metric: str
    runs: pd.DataFrame = field(compare=False)
    """Their rows of the tidy data."""
    spread: str = ""
    """Printed after the number; empty for one run, and where all runs are equal."""
    extra: str = ""
    """Printed after the spread."""
    best: bool = False
    """Significantly better than all that it is compared with."""
    is_p: bool = False
    data_interval: tuple[float | None, float | None] = (None, None)
    """The runs' own of 95 %, averaged over seeds; None where the metric has none."""

    @property
    def interval_95(self) -> tuple[float | None, float | None]:
        """That of 95 % over the runs; of one run its own."""
        if self.low is None:
            return self.data_interval
        if self.sd is None or self.value is None:
            return self.low, self.high
        return t_interval(self.n, self.value, self.sd)


@dataclass(frozen=True)
class Table:
    """Entries by row and column. A row is for levels, one of each axis that its headings name."""

    experiment: str
    size: str
    name: str
    caption: str
    row_headings: list[str]
    columns: list[str]
    rows: list[list[str]]
    entries: list[list[Entry]]
    footnotes: list[str]

    def each(self) -> Iterator[tuple[str, str, Entry]]:
        """Row, column and entry."""
        for levels, entries in zip(self.rows, self.entries, strict=True):
            for column, entry in zip(self.columns, entries, strict=True):
                yield ", ".join(levels), column, entry

    def find(self, row: str, column: str) -> tuple[str, str, Entry]:
        """The entry of a row and a column, each named by a part of its heading that no other has. Raises UserError."""
        rows = _named("row", row, [", ".join(levels) for levels in self.rows])
        columns = _named("column", column, self.columns)
        return next(found for found in self.each() if found[:2] == (rows, columns))


def _named(what: str, part: str, headings: list[str]) -> str:
    found: list[str] = []
    for names in (str.__eq__, str.startswith, str.__contains__):
        found = found or [heading for heading in headings if names(heading.lower(), part.lower())]
    if len(found) != 1:
        raise UserError(f"{what} `{part}`: {'several' if found else 'none'}; there are {'; '.join(headings)}")
    return found[0]


SPREADS = {
    "sd": "standard deviation over seeds",
    "interval_95": "half-width of the 95 % interval of the mean over seeds, by Student's t",
}


def means_table(data: Tidy, name: str) -> Table:
    """A table of the file: a mean over seeds in each entry.

    Raises UserError where an entry would mix cells of different levels.
    """
    experiment, table = data.experiment, data.experiment.tables[name]
    grouped = data.frame.groupby(table.rows, observed=True)
    groups = {tuple(map(str, levels)): rows for levels, rows in grouped}
    for key, rows in groups.items():
        if mixed := mixed_axes(rows, data.axes):
            raise UserError(
                f"tables.{name}: the row {', '.join(key)} holds several levels of {', '.join(mixed)}; "
                "name that axis under rows"
            )
    columns = [_column(data, table, [*groups.values()], metric) for metric in table.metrics]
    entries = [list(line) for line in zip(*columns, strict=True)]
    return Table(
        data.name,
        data.size,
        name,
        caption=table.caption,
        row_headings=[named(axis) for axis in table.rows],
        columns=[experiment.metrics[metric].heading for metric in table.metrics],
        rows=[list(levels) for levels in groups],
        entries=entries,
        footnotes=_footnotes(data, table, entries),
    )


def named(axis: str) -> str:
    """An axis for people."""
    return axis.replace("_", " ")


def number(value: float | None, decimals: int, *, signed: bool = False) -> str:
    """A number for people; empty for None."""
    return "" if value is None else f"{value:{'+' if signed else ''},.{decimals}f}"


def decimals_of(data: Tidy, metric: str) -> int:
    """Digits after the point: as the file says, else enough to show four digits of the largest number."""
    asked = data.experiment.metrics[metric].decimals
    if asked is not None:
        return asked
    largest = data.frame[metric].abs().max()
    return min(max(3 - math.floor(math.log10(largest)), 0), MOST_DECIMALS) if largest > 0 else 0


def _column(data: Tidy, table: "TableSpec", groups: Sequence[pd.DataFrame], metric: str) -> list[Entry]:
    """The entries of a metric, one for each group of runs, with the best marked where no run is missing."""
    entries = [_mean(data, table, rows, metric) for rows in groups]
    better = data.experiment.metrics[metric].better
    by_seed = pd.concat([rows.set_index("seed")[metric] for rows in groups], axis="columns").sort_index()
    if better is None or len(by_seed) < 2 or by_seed.isna().to_numpy().any():
        return entries
    values = by_seed.to_numpy().T.tolist()
    return [
        replace(entry, best=is_best(own, values[:index] + values[index + 1 :], lower=better == "lower"))
        for index, (entry, own) in enumerate(zip(entries, values, strict=True))
    ]


def _mean(data: Tidy, table: "TableSpec", rows: pd.DataFrame, metric: str) -> Entry:
    decimals = decimals_of(data, metric)
    found = estimate(rows[metric].dropna().tolist())
    spread = found.sd if table.spread == "sd" or found.high is None else found.high - found.mean
    bounds: list[float] = []
    if data.experiment.metrics[metric].interval:
        bounds = rows[[f"{metric} low", f"{metric} high"]].dropna().mean().dropna().tolist()
    printed = [number(bound, decimals) for bound in bounds if table.data_interval]
    return _entry(
        found,
        rows,
        metric,
        text=number(found.mean, decimals) if found.n else "",
        spread=f"± {number(spread, decimals)}" if spread else "",
        extra=f"[{', '.join(printed)}]" if printed else "",
        expected=len(rows),
        data_interval=tuple(bounds) or (None, None),
    )


def _entry(found: Estimate, rows: pd.DataFrame, metric: str, **printed: Any) -> Entry:
    return Entry(
        n=found.n,
        value=found.mean if found.n else None,
        low=found.low,
        high=found.high,
        sd=found.sd,
        metric=metric,
        runs=rows,
        **printed,
    )


def _footnotes(data: Tidy, table: "TableSpec", entries: list[list[Entry]]) -> list[str]:
    seeds = sorted(data.frame["seed"].unique())
    lines = [f"Mean ± {SPREADS[table.spread]}; n = {len(seeds)} seeds ({', '.join(map(str, seeds))})."]
    if len(seeds) == 1:
        lines = [f"One run each, seed {seeds[0]}: nothing is said of other seeds."]
    if any(entry.extra for line in entries for entry in line):
        lines.append(
            "In brackets the runs' own 95 % interval over their held-out data, its bounds averaged over seeds."
        )
    if any(data.experiment.metrics[metric].better for metric in table.metrics) and len(seeds) > 1:
        lines.append(
            "Bold: better than every other entry of its column "
            f"(paired t tests by seed, Holm-corrected, p < {SIGNIFICANT}); nothing is marked where a run is missing."
        )
    return [*lines, *rounded_to_zero(entries), *missing(data, table.metrics), *data.notes]


def rounded_to_zero(entries: Sequence[Sequence[Entry]]) -> list[str]:
    """A footnote that says where a number is printed as 0 and is none; none where that is nowhere."""
    printed = [entry for line in entries for entry in line if entry.value and entry.text.strip("+-0.,") == ""]
    smallest = min((abs(entry.value) for entry in printed if entry.value and entry.text), default=None)
    if smallest is None:
        return []
    return [f"Some numbers are printed as 0 and are not 0 (the smallest is {smallest:.2g}): raise `decimals`."]


def missing(data: Tidy, metrics: Sequence[str]) -> list[str]:
    """A footnote that names each run that is not there, or has no such metric, and why; none where all are."""
    absent: dict[tuple[str, str], list[str]] = {}
    for row in data.frame.to_dict("records"):
        why = ": ".join(filter(None, (row["state"], row["message"])))
        if row["state"] == "finished":
            without = [data.experiment.metrics[name].label for name in metrics if pd.isna(row[name])]
            why = f"no {', '.join(without)}" if without else ""
        if why:
            absent.setdefault((row[LEVELS], why), []).append(str(row["seed"]))
    named = [f"{levels}, seed {', '.join(seeds)} ({why})" for (levels, why), seeds in absent.items()]
    return [f"Runs that are missing: {'; '.join(named)}."] if named else []


def differences_table(data: Tidy, name: str) -> Table:
    """A comparison of the file: paired differences by seed, all p values of the table corrected together."""
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
    found = [_difference(data, line, line | base, metric) for line in lines for metric in comparison.metrics]
    tested = holm([p for _, p in found])
    flat = [
        entry
        for (own, _), (p, level) in zip(found, tested, strict=True)
        for entry in (_with_interval(data, own, level), _p_entry(own, p))
    ]
    width = 2 * len(metrics)
    entries = [flat[start : start + width] for start in range(0, len(flat), width)]
    return Table(
        data.name,
        data.size,
        name,
        caption=comparison.caption,
        row_headings=[named(item) for item in (*others, axis)],
        columns=[text for metric in metrics for text in (f"Δ {metric.heading}", f"p of Δ {metric.label}")],
        rows=[list(line.values()) for line in lines],
        entries=entries,
        footnotes=[
            *_of_differences(baseline, [level for _, level in tested if level is not None]),
            *rounded_to_zero(entries),
            *missing(data, comparison.metrics),
            *data.notes,
        ],
    )


def _of_differences(baseline: str, levels: Sequence[float]) -> list[str]:
    """The footnotes on intervals and p values."""
    what = f"Mean difference from {baseline}, paired by seed, and in percent of the baseline"
    if len(levels) < 2:
        return [f"{what}, with its 95 % interval by Student's t. p of the paired t test."]
    first, last = (f"{100 * (1 - level):.3g}" for level in (max(levels), min(levels)))
    spread = first if first == last else f"{first} to {last}"
    return [
        f"{what}. p of the paired t test, Holm-corrected for the {len(levels)} differences.",
        "In brackets the intervals by Student's t at the levels at which Holm's procedure tests the differences, "
        f"{spread} %: one excludes 0 exactly where p is below {SIGNIFICANT}.",
    ]


def _difference(data: Tidy, line: dict[str, str], base: dict[str, str], metric: str) -> tuple[Entry, float | None]:
    """The entry of the difference between two combinations of levels, paired by seed, and its p value."""
    own, against = (at_levels(data.frame, levels) for levels in (line, base))
    values, reference = paired_by_seed(own, against, metric)
    found, mean = paired_difference(values, reference), estimate(reference).mean
    entry = _entry(
        found,
        pd.concat([own, against]),
        metric,
        text=number(found.mean, decimals_of(data, metric), signed=True) if found.n else "",
        extra=f"({100 * found.mean / abs(mean):+.1f} %)" if found.n and mean else "",
        expected=len({*own["seed"], *against["seed"]}),
    )
    return entry, found.p


def _with_interval(data: Tidy, entry: Entry, level: float | None) -> Entry:
    """The entry of a difference with its interval at the level of its test."""
    low, high = entry.low, entry.high
    if entry.value is not None and entry.sd and level is not None:
        low, high = t_interval(entry.n, entry.value, entry.sd, level)
    bounds = [number(bound, decimals_of(data, entry.metric), signed=True) for bound in (low, high)]
    return replace(entry, low=low, high=high, spread=f"[{', '.join(bounds)}]" if all(bounds) else "")


def _p_entry(difference: Entry, p: float | None) -> Entry:
    # The entry of the difference says what is missing.
    return replace(
        difference, text=_p_text(p), extra="", is_p=True, value=p, low=None, high=None, sd=None, expected=difference.n
    )


def _p_text(p: float | None) -> str:
    """Three decimals, and as many more as show on which side of the threshold it is: 0.0498 and not 0.050."""
    if p is None:
        return ""
    texts = (f"{p:.{decimals}f}" for decimals in range(3, 18))
    on_its_side = next(text for text in texts if (float(text) < SIGNIFICANT) == (p < SIGNIFICANT))
    return "<0.001" if p < 0.001 else on_its_side
