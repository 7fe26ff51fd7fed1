"""From tidy data to tables: means over seeds, and paired differences."""

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from flows.experiments.rows import Row, Tidy, at_levels, paired_by_seed
from flows.experiments.statistics import SIGNIFICANT, Difference, Estimate, estimate, holm, is_best, paired_difference
from flows.experiments.stored import Column, Entry, EntryRun, StoredTable
from stages.runtime.entry import UserError

if TYPE_CHECKING:
    from flows.experiments.experiment import Experiment, Table

SPREADS = {
    "sd": "standard deviation over seeds",
    "interval_95": "half-width of the 95 % interval of the mean over seeds, by Student's t",
}


def means_table(experiment: "Experiment", place: tuple[str, str], name: str, data: Tidy) -> StoredTable:
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
    return StoredTable(
        experiment=place[0],
        size=place[1],
        name=name,
        caption=table.caption,
        row_headings=[named(axis) for axis in table.rows],
        columns=[Column(label=experiment.metrics[metric].heading) for metric in table.metrics],
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


def _entry(experiment: "Experiment", table: "Table", rows: Sequence[Row], metric: str) -> Entry:
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
        runs=[entry_run(row, row.metrics.get(metric)) for row in rows],
    )


def entry_run(row: Row, value: float | None) -> EntryRun:
    """A row as a run behind an entry."""
    return EntryRun(
        cell=row.cell,
        seed=row.seed,
        state=row.state if row.state != "finished" or value is not None else "no such metric",
        value=value,
        experiment=row.experiment,
        commit=row.commit,
        baseline=row.baseline,
        params_sha256=row.params_sha256,
        message=row.message,
    )


def _marked(experiment: "Experiment", table: "Table", entries: list[list[Entry]]) -> list[list[Entry]]:
    """The entries with the best of each column marked."""
    marked = [[*line] for line in entries]
    for column, metric in enumerate(table.metrics):
        better = experiment.metrics[metric].better
        values = [_by_seed(line[column]) for line in entries]
        if better and all(len(item) > 1 for item in values) and len({tuple(item) for item in values}) == 1:
            numbers = [list(item.values()) for item in values]
            for row, own in enumerate(numbers):
                best = is_best(own, numbers[:row] + numbers[row + 1 :], lower=better == "lower")
                marked[row][column] = entries[row][column].model_copy(update={"best": best})
    return marked


def _by_seed(entry: Entry) -> dict[int, float]:
    found = {run.seed: run.value for run in entry.runs if run.value is not None}
    return dict(sorted(found.items())) if entry.n == entry.expected else {}


def _footnotes(experiment: "Experiment", table: "Table", entries: list[list[Entry]], data: Tidy) -> list[str]:
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
    return [*lines, *missing(experiment, data.rows, table.metrics), *data.notes]


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


def differences_table(experiment: "Experiment", place: tuple[str, str], name: str, data: Tidy) -> StoredTable:
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
        columns += [Column(label=f"Δ {described.heading}"), Column(label=f"p of Δ {described.label}", holds="p values")]
        for line, row in zip(lines, entries, strict=True):
            difference = found[line, metric][1]
            row += [difference, _p_entry(difference, corrected[line, metric])]
    return StoredTable(
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
        runs=[entry_run(row, row.metrics.get(metric)) for row in (*own, *base)],
    )


def _p_entry(difference: Entry, p: float | None) -> Entry:
    text = "" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"
    changed = {"text": text, "spread": "", "extra": "", "value": p, "low": None, "high": None, "sd": None}
    changed |= {"expected": difference.n}  # the entry of the difference says what is missing
    return difference.model_copy(update=changed)
