"""From tidy data to tables: means over seeds, and paired differences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Literal

from flows.experiments.rows import Row, Tidy, at_levels, paired_by_seed
from flows.experiments.statistics import SIGNIFICANT, Difference, Estimate, estimate, holm, is_best, paired_difference
from stages.runtime.entry import UserError

if TYPE_CHECKING:
    from flows.experiments.experiment import Experiment
    from flows.experiments.experiment import Table as TableSpec


@dataclass(frozen=True)
class Entry:
    """One entry: what is printed, the numbers, and the runs."""

    text: str
    """The number; empty where there is none."""
    spread: str
    """Printed after the number; empty for one run, and where all runs are equal."""
    extra: str
    """Printed after the spread."""
    best: bool
    """Significantly better than all that it is compared with."""
    n: int
    """Runs that count."""
    expected: int
    """Runs of the grid."""
    value: float | None
    """The mean, the mean difference or a p value."""
    low: float | None
    """Of the 95 % t interval."""
    high: float | None
    sd: float | None
    metric: str
    """What the runs are asked for."""
    runs: Sequence[Row]
    data_low: float | None = None
    """Of the runs' own 95 % interval, averaged over seeds; None where the metric has none."""
    data_high: float | None = None


@dataclass(frozen=True)
class Column:
    """A column's heading."""

    heading: str
    holds: Literal["numbers", "p values"] = "numbers"


@dataclass(frozen=True)
class Table:
    """A table."""

    experiment: str
    size: str
    name: str
    caption: str
    row_headings: list[str]
    columns: list[Column]
    rows: list[list[str]]
    """The levels that each row is for."""
    entries: list[list[Entry]]
    """By row and column."""
    footnotes: list[str]

    def each(self) -> Iterator[tuple[str, str, Entry]]:
        """Row, column and entry."""
        for levels, entries in zip(self.rows, self.entries, strict=True):
            for column, entry in zip(self.columns, entries, strict=True):
                yield ", ".join(levels), column.heading, entry

    def by_place(self) -> dict[tuple[tuple[str, ...], Column], Entry]:
        """Each entry by the levels of its row and its column."""
        return {
            (tuple(levels), column): entry
            for levels, entries in zip(self.rows, self.entries, strict=True)
            for column, entry in zip(self.columns, entries, strict=True)
        }

    def find(self, row: str, column: str) -> tuple[str, str, Entry]:
        """The entry of a row and a column, each named by a part of its heading that no other has. Raises UserError."""
        rows = _named("row", row, [", ".join(levels) for levels in self.rows])
        columns = _named("column", column, [item.heading for item in self.columns])
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


def means_table(experiment: "Experiment", place: tuple[str, str], name: str, data: Tidy) -> Table:
    """A table of the file: a mean over seeds in each entry. `place` is the experiment's name and size.

    Raises UserError where an entry would mix cells of different levels.
    """
    table = experiment.tables[name]
    levels = list(product(*(data.levels(axis) for axis in table.rows)))
    held: dict[tuple[str, ...], list[Row]] = {}
    for row in data.rows:
        held.setdefault(tuple(row.levels[axis] for axis in table.rows), []).append(row)
    for key, rows in held.items():
        if len({row.seed for row in rows}) < len(rows):
            mixed = [axis for axis in rows[0].levels if len({row.levels[axis] for row in rows}) > 1]
            raise UserError(
                f"tables.{name}: the row {', '.join(key)} holds several levels of {', '.join(mixed)}; "
                "name that axis under rows"
            )
    entries = [[_entry(experiment, table, held[row], metric) for metric in table.metrics] for row in levels]
    return Table(
        experiment=place[0],
        size=place[1],
        name=name,
        caption=table.caption,
        row_headings=[named(axis) for axis in table.rows],
        columns=[Column(experiment.metrics[metric].heading) for metric in table.metrics],
        rows=[list(row) for row in levels],
        entries=_marked(experiment, table, entries),
        footnotes=_footnotes(experiment, table, entries, data),
    )


def named(axis: str) -> str:
    """An axis for people."""
    return axis.replace("_", " ")


def number(value: float | None, decimals: int, *, signed: bool = False) -> str:
    """A number for people; empty for None."""
    return "" if value is None else f"{value:{'+' if signed else ''},.{decimals}f}"


def _entry(experiment: "Experiment", table: "TableSpec", rows: Sequence[Row], metric: str) -> Entry:
    decimals = experiment.metrics[metric].decimals
    values = [row.metrics[metric] for row in rows if metric in row.metrics]
    found = estimate(values) if values else Estimate(0, 0.0, None, None, None)
    spread = found.sd if table.spread == "sd" else found.half_width
    intervals = [row.intervals[metric] for row in rows if metric in row.intervals]
    data_low, data_high = [sum(bound) / len(bound) for bound in zip(*intervals, strict=True)] or (None, None)
    bounds = [number(data_low, decimals), number(data_high, decimals)] if intervals and table.data_interval else []
    return Entry(
        text=number(found.mean, decimals) if values else "",
        spread=f"± {number(spread, decimals)}" if spread else "",
        extra=f"[{', '.join(bounds)}]" if bounds else "",
        best=False,
        n=len(values),
        expected=len(rows),
        value=found.mean if values else None,
        low=found.low,
        high=found.high,
        sd=found.sd,
        data_low=data_low,
        data_high=data_high,
        metric=metric,
        runs=rows,
    )


def _marked(experiment: "Experiment", table: "TableSpec", entries: list[list[Entry]]) -> list[list[Entry]]:
    """The entries with the best of each column marked."""
    marked = [[*line] for line in entries]
    for column, metric in enumerate(table.metrics):
        better = experiment.metrics[metric].better
        values = [_by_seed(line[column]) for line in entries]
        if better and all(len(item) > 1 for item in values) and len({tuple(item) for item in values}) == 1:
            numbers = [list(item.values()) for item in values]
            for row, own in enumerate(numbers):
                best = is_best(own, numbers[:row] + numbers[row + 1 :], lower=better == "lower")
                marked[row][column] = replace(entries[row][column], best=best)
    return marked


def _by_seed(entry: Entry) -> dict[int, float]:
    found = {run.seed: run.metrics[entry.metric] for run in entry.runs if entry.metric in run.metrics}
    return dict(sorted(found.items())) if entry.n == entry.expected else {}


def _footnotes(experiment: "Experiment", table: "TableSpec", entries: list[list[Entry]], data: Tidy) -> list[str]:
    seeds = sorted({row.seed for row in data.rows})
    lines = [f"Mean ± {SPREADS[table.spread]}; n = {len(seeds)} seeds ({', '.join(map(str, seeds))})."]
    if len(seeds) == 1:
        lines = [f"One run each, seed {seeds[0]}: nothing is said of other seeds."]
    if any(entry.extra for line in entries for entry in line):
        lines.append(
            "In brackets the runs' own 95 % interval over their held-out data, its bounds averaged over seeds."
        )
    if any(experiment.metrics[metric].better for metric in table.metrics) and len(seeds) > 1:
        lines.append(
            "Bold: better than every other entry of its column "
            f"(paired t tests by seed, Holm-corrected, p < {SIGNIFICANT}); nothing is marked where a run is missing."
        )
    return [*lines, *rounded_to_zero(entries), *missing(experiment, data.rows, table.metrics), *data.notes]


def rounded_to_zero(entries: Sequence[Sequence[Entry]]) -> list[str]:
    """A footnote that says where a number is printed as 0 and is none; none where that is nowhere."""
    printed = [entry for line in entries for entry in line if entry.value and entry.text.strip("+-0.,") == ""]
    smallest = min((abs(entry.value) for entry in printed if entry.value and entry.text), default=None)
    if smallest is None:
        return []
    return [f"Some numbers are printed as 0 and are not 0 (the smallest is {smallest:.2g}): raise `decimals`."]


def missing(experiment: "Experiment", rows: Sequence[Row], metrics: Sequence[str]) -> list[str]:
    """A footnote that names each run that is not there, or has no such metric, and why; none where all are."""
    absent: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        why = ": ".join(filter(None, (row.state, row.message)))
        if row.state == "finished":
            without = [name for name in metrics if name not in row.metrics]
            why = f"no {', '.join(experiment.metrics[name].label for name in without)}" if without else ""
        if why:
            absent.setdefault((", ".join(row.levels.values()), why), []).append(row.seed)
    named = [f"{levels}, seed {', '.join(map(str, seeds))} ({why})" for (levels, why), seeds in absent.items()]
    return [f"Runs that are missing: {'; '.join(named)}."] if named else []


def differences_table(experiment: "Experiment", place: tuple[str, str], name: str, data: Tidy) -> Table:
    """A comparison of the file: paired differences by seed, all p values of the table corrected together."""
    comparison = experiment.comparisons[name]
    axis, baseline = comparison.axis, comparison.baseline
    if baseline not in data.levels(axis):
        levels = ", ".join(data.levels(axis))
        raise UserError(f"comparisons.{name}.baseline = {baseline!r}: {axis} has {levels}")
    rows = data.rows
    others = [other for other in rows[0].levels if other != axis]
    groups = list(dict.fromkeys(tuple(row.levels[other] for other in others) for row in rows))
    lines = [(*group, level) for group in groups for level in data.levels(axis) if level != baseline]
    found = {
        (line, metric): _difference(experiment, rows, [*others, axis], line, baseline, metric)
        for line in lines
        for metric in comparison.metrics
    }
    corrected = dict(zip(found, holm([p for p, _ in found.values()]), strict=True))
    tested = sum(p is not None for p in corrected.values())
    columns: list[Column] = []
    entries: list[list[Entry]] = [[] for _ in lines]
    for metric in comparison.metrics:
        described = experiment.metrics[metric]
        columns += [Column(f"Δ {described.heading}"), Column(f"p of Δ {described.label}", holds="p values")]
        for line, row in zip(lines, entries, strict=True):
            difference = found[line, metric][1]
            row += [difference, _p_entry(difference, corrected[line, metric])]
    return Table(
        experiment=place[0],
        size=place[1],
        name=name,
        caption=comparison.caption,
        row_headings=[named(item) for item in (*others, axis)],
        columns=columns,
        rows=[list(line) for line in lines],
        entries=entries,
        footnotes=[
            f"Mean difference from {baseline}, paired by seed, with its 95 % interval (Student's t), and in percent of "
            f"the baseline. p of the paired t test, Holm-corrected for the {tested} differences.",
            "The intervals are not corrected for their number: one may exclude 0 although p is not below 0.05.",
            *rounded_to_zero(entries),
            *missing(experiment, rows, comparison.metrics),
            *data.notes,
        ],
    )


def _difference(
    experiment: "Experiment", rows: Sequence[Row], axes: Sequence[str], line: Sequence[str], baseline: str, metric: str
) -> tuple[float | None, Entry]:
    """The p value, and the entry of the difference."""
    levels = dict(zip(axes, line, strict=True))
    own, base = (at_levels(rows, place) for place in (levels, levels | {axes[-1]: baseline}))
    values, against = paired_by_seed(own, base, metric)
    decimals = experiment.metrics[metric].decimals
    found = paired_difference(values, against) if values else Difference(0, 0.0, None, None, None, None)
    bounds = [number(bound, decimals, signed=True) for bound in (found.low, found.high)]
    reference = sum(against) / len(against) if against else 0.0
    return found.p, Entry(
        text=number(found.mean, decimals, signed=True) if values else "",
        spread=f"[{', '.join(bounds)}]" if all(bounds) else "",
        extra=f"({100 * found.mean / reference:+.1f} %)" if reference else "",
        best=False,
        n=found.n,
        expected=len({row.seed for row in (*own, *base)}),
        value=found.mean if values else None,
        low=found.low,
        high=found.high,
        sd=found.sd,
        metric=metric,
        runs=(*own, *base),
    )


def _p_entry(difference: Entry, p: float | None) -> Entry:
    text = "" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"
    # The entry of the difference says what is missing.
    return replace(
        difference, text=text, spread="", extra="", value=p, low=None, high=None, sd=None, expected=difference.n
    )
