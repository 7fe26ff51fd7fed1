"""The tidy table of an experiment's runs, runs.csv.

It has a row for each cell of the grid, whether its run finished, failed or never began:

    cell                                 the cell's id
    AXIS, ...                            the cell's level of each axis, a categorical in the order of the grid
    seed
    state                                `finished`, `failed`, `cancelled` or `not run`
    METRIC, ...                          NaN if the run has no such number
    METRIC low, METRIC high, ...         the run's own 95 % interval, for metrics that have one
    experiment, commit, baseline, message

and LEVELS, which joins the axes.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from flows.experiments.experiment import COLUMNS, Experiment
from flows.experiments.record import Run
from stages.formats.curves import Points
from stages.runtime.errors import UserError
from stages.runtime.section import PARAMS_FILE, flatten, value_at

if TYPE_CHECKING:
    from flows.experiments.cells import Cell

SOURCES = COLUMNS[3:]

SIDES = ("low", "high")

LEVELS = "all levels"
"""A column with all levels of a cell. Its name has a space, unlike those of axes and metrics."""


@dataclass(frozen=True)
class Tidy:
    """The rows in the order of the grid, with their curves and notes for all of them."""

    name: str
    experiment: Experiment
    frame: pd.DataFrame
    curves: Mapping[str, Mapping[str, Points]] = field(default_factory=dict)
    """The curves of finished runs, by cell id and curve name; not in runs.csv."""
    notes: tuple[str, ...] = ()

    @property
    def axes(self) -> list[str]:
        """The axes of the grid."""
        return [*self.experiment.axes]

    def levels(self, axis: str) -> list[str]:
        """The levels of an axis, in the order of the grid."""
        return list(self.frame[axis].cat.categories)

    def select(self, where: Mapping[str, str]) -> pd.DataFrame:
        """The rows with these levels. Raises UserError for an axis or a level that the grid does not have."""
        for axis, level in where.items():
            if axis not in self.axes:
                raise UserError(f"no axis `{axis}`; choose from: {', '.join(self.axes)}")
            if level not in self.levels(axis):
                raise UserError(f"{axis} has no level `{level}`; choose from: {', '.join(self.levels(axis))}")
        return at_levels(self.frame, where)


def at_levels(rows: pd.DataFrame, levels: Mapping[str, str]) -> pd.DataFrame:
    """The rows with these levels."""
    for axis, level in levels.items():
        rows = rows[rows[axis] == level]
    return rows


def mixed_axes(rows: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """The axes on which these rows have several levels."""
    return [axis for axis in axes if rows[axis].nunique() > 1]


def labels(rows: pd.DataFrame) -> "pd.Series[str]":
    """The label of each row for the user."""
    return rows[LEVELS] + ", seed " + rows["seed"].astype(str)


def lacking(n: int, expected: int) -> str:
    """`2 of 3 runs`; empty if no run is missing."""
    return f"{n} of {expected} runs" if n < expected else ""


def paired_by_seed(own: pd.DataFrame, base: pd.DataFrame, metric: str) -> tuple[list[float], list[float]]:
    """The values of a metric on both sides by seed; seeds that one side lacks are omitted."""
    sides = (rows.set_index("seed")[metric] for rows in (own, base))
    both = pd.concat(sides, axis="columns", join="inner").dropna()
    return both.iloc[:, 0].tolist(), both.iloc[:, 1].tolist()


def tidy(name: str, experiment: Experiment, cells: Sequence["Cell"], runs: Iterable[Run]) -> Tidy:
    """The table of cells and their runs.

    Raises UserError if finished runs differ in a parameter that no cell sets, because the table would mix experiments.
    """
    by_cell = {run.cell: run for run in runs}
    ended = [(run, cell) for cell in cells if (run := by_cell.get(cell.id)) and run.state == "finished"]
    require_same_params([(run, cell.overrides) for run, cell in ended])
    finished = [run for run, _ in ended]
    rows = [_row(experiment, cell, by_cell.get(cell.id)) for cell in cells]
    curves = {
        run.cell: {
            name: points for name, curve in experiment.curves.items() if (points := run.curves.get(curve.source))
        }
        for run in finished
    }
    baselines = sorted({run.baseline[:7] for run in finished if run.baseline})
    notes = (f"The runs were started from {len(baselines)} commits: {', '.join(baselines)}.",) if baselines[1:] else ()
    return Tidy(name, experiment, _typed(experiment, pd.DataFrame(rows)), curves, notes)


def require_same_params(runs: Sequence[tuple[Run, Collection[str]]]) -> None:
    """Raise UserError if runs differ in parameters that their cells do not set."""
    by_key: dict[str, set[str]] = {}
    flat = [flatten(run.params) for run, _ in runs]
    for key in {key for values in flat for key in values}:
        for values, (_, set_by_cell) in zip(flat, runs, strict=True):
            if not f"{key}.".startswith(tuple(f"{name}." for name in set_by_cell)):
                by_key.setdefault(key, set()).add(repr(values.get(key)))
    if mixed := sorted(key for key, values in by_key.items() if len(values) > 1):
        raise UserError(
            f"the runs differ in {', '.join(mixed[:5])}, which their cells do not set, because {PARAMS_FILE} changed "
            "between them; `parrotflow sweep` runs the older ones again"
        )


def _row(experiment: Experiment, cell: "Cell", run: Run | None) -> dict[str, Any]:
    row: dict[str, Any] = {"cell": cell.id, **cell.levels, "seed": cell.seed, "state": run.state if run else "not run"}
    known = {source: getattr(run, source, "") for source in SOURCES}
    reports = run.reports if run and row["state"] == "finished" else {}
    bounds: dict[str, Any] = {}
    for name, metric in experiment.metrics.items():
        value = number_at(reports, metric.source)
        row[name] = None if value is None else value / metric.scale
        if metric.interval:
            ends = _report_value(reports, metric.interval)
            has_width = isinstance(ends, list) and len(ends) == 2 and ends[0] < ends[1]  # older records have [0, 0]
            pair = ends if has_width else (math.nan, math.nan)
            bounds |= {f"{name} {side}": float(bound) / metric.scale for side, bound in zip(SIDES, pair, strict=True)}
    return row | bounds | known


def _report_value(reports: Mapping[str, Any], location: str) -> Any:
    file, _, key = location.partition(":")
    return value_at(reports.get(file), key)


def number_at(reports: Mapping[str, Any], location: str) -> float | None:
    """The finite number at FILE:KEY in a run's reports; None if there is none."""
    value = _report_value(reports, location)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def headings(experiment: Experiment) -> dict[str, str]:
    """Column of numbers -> heading in runs.csv."""
    metrics = {name: f"{name} ({item.unit})" if item.unit else name for name, item in experiment.metrics.items()}
    bounds = [f"{name} {side}" for name, item in experiment.metrics.items() if item.interval for side in SIDES]
    return metrics | {name: name for name in bounds}


def _typed(experiment: Experiment, frame: pd.DataFrame) -> pd.DataFrame:
    """Convert the columns to their types, and add LEVELS."""
    frame[LEVELS] = frame[[*experiment.axes]].agg(", ".join, axis="columns")
    for axis in experiment.axes:
        frame[axis] = pd.Categorical(frame[axis], categories=frame[axis].unique())
    return frame.astype(dict.fromkeys(headings(experiment), float) | {"seed": int})


def rows_csv(data: Tidy) -> str:
    """The rows as CSV, with units in the headings."""
    frame = data.frame.drop(columns=LEVELS).rename(columns=headings(data.experiment))
    return str(frame.to_csv(index=False, lineterminator="\n"))
