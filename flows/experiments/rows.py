"""Tidy data: a row for each cell of the grid, whether its run finished, failed or never began."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from stages.runtime.entry import UserError
from stages.runtime.section import PARAMS_FILE, differences, flatten, value_at

if TYPE_CHECKING:
    from flows.experiments.cells import Cell
    from flows.experiments.experiment import Experiment
    from flows.experiments.runs import Run

Points = list[tuple[float, float]]

_ABSENT = object()

SIDES = ("low", "high")
SOURCES = ("experiment", "commit", "baseline", "params_sha256", "message")
"""Columns of runs.csv, as the fields of a row are called."""


@dataclass(frozen=True)
class Row:
    """One cell, and what its run gave."""

    cell: str
    """Its id."""
    levels: Mapping[str, str]
    """Axis -> level."""
    seed: int
    state: str
    """`finished`; else why there is no number: `not run`, `failed`, `other params`."""
    message: str = ""
    """More about the state."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Those that the run has; none unless it is finished."""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The run's own 95 % intervals."""
    curves: Mapping[str, Points] = field(default_factory=dict)
    experiment: str = ""
    commit: str = ""
    baseline: str = ""
    params_sha256: str = ""

    @property
    def label(self) -> str:
        """For people."""
        return f"{', '.join(self.levels.values())}, seed {self.seed}"


@dataclass(frozen=True)
class Tidy:
    """The rows in the order of the grid, and what is to be known about all of them."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def select(self, where: Mapping[str, str]) -> list[Row]:
        """The rows of these levels. Raises UserError on an axis or a level that the grid does not have."""
        for axis, level in where.items():
            if axis not in self.rows[0].levels:
                raise UserError(f"no axis `{axis}`; there are {', '.join(self.rows[0].levels)}")
            if level not in self.levels(axis):
                raise UserError(f"{axis} has no level `{level}`; there are {', '.join(self.levels(axis))}")
        return at_levels(self.rows, where)

    def levels(self, axis: str) -> list[str]:
        """The levels of an axis, in the order of the grid."""
        return list(dict.fromkeys(row.levels[axis] for row in self.rows))


def lacking(n: int, expected: int) -> str:
    """`2 of 3 runs`; empty where no run is missing."""
    return f"{n} of {expected} runs" if n < expected else ""


def at_levels(rows: Sequence[Row], levels: Mapping[str, str]) -> list[Row]:
    """The rows with these levels."""
    return [row for row in rows if all(row.levels[axis] == level for axis, level in levels.items())]


def paired_by_seed(own: Sequence[Row], base: Sequence[Row], metric: str) -> tuple[list[float], list[float]]:
    """The values of a metric in both, seed by seed; seeds that one of them lacks are left out."""
    left, right = ({row.seed: row.metrics[metric] for row in rows if metric in row.metrics} for rows in (own, base))
    both = [seed for seed in left if seed in right]
    return [left[seed] for seed in both], [right[seed] for seed in both]


def tidy(
    experiment: "Experiment",
    cells: Sequence["Cell"],
    runs: Iterable["Run"],
    params: Mapping[str, Any],
    read: Collection[str] = ("",),
) -> Tidy:
    """Each cell with its run. `read` are the dotted keys of params.yaml that its stages read; empty text is all of it.

    A run counts only if it was made with the cell's params. Those that the cell sets are compared one by one; all
    others that its stages read have to be the same in every run that does not set them. If params.yaml changed after
    all the runs were made, they count, and a note says what differs; if it changed between them, only those made with
    today's params count.
    """
    by_cell = {run.cell: run for run in runs}
    read = {f"{key}." if key else "" for key in read}
    finished = {cell.id: by_cell[cell.id] for cell in cells if cell.id in by_cell}
    finished = {cell: run for cell, run in finished.items() if run.state == "finished"}
    own = {cell.id: list(cell.overrides) for cell in cells}
    rests = {cell: leaves_read(run.params, read, own[cell]) for cell, run in finished.items()}
    moved = {
        cell: [key for key, *_ in differences("", leaves_read(params, read, own[cell]), rest) if key in rest]
        for cell, rest in rests.items()
    }
    all_alike = _all_alike(rests, own)
    rows = tuple(
        _row(experiment, cell, by_cell.get(cell.id), [] if all_alike else moved.get(cell.id, [])) for cell in cells
    )
    notes = []
    keys = sorted({key for keys in moved.values() for key in keys})
    if keys and all_alike:
        notes.append(f"The runs were made with another {PARAMS_FILE} than today's: {', '.join(keys)}.")
    baselines = sorted({row.baseline[:7] for row in rows if row.state == "finished" and row.baseline})
    if len(baselines) > 1:
        notes.append(f"The runs were started from {len(baselines)} commits: {', '.join(baselines)}.")
    return Tidy(rows, tuple(notes))


def _all_alike(rests: Mapping[str, Mapping[str, Any]], own: Mapping[str, Sequence[str]]) -> bool:
    """Whether no leaf differs between the cells that do not set it; `own` are the keys that each cell sets."""
    within = {cell: tuple(f"{key}." for key in own[cell]) for cell in rests}
    for key in {key for rest in rests.values() for key in rest}:
        told = [rest.get(key, _ABSENT) for cell, rest in rests.items() if not f"{key}.".startswith(within[cell])]
        if any(value != told[0] for value in told):
            return False
    return True


def is_of_today(run: "Run", cell: "Cell", params: Mapping[str, Any], read: Collection[str]) -> bool:
    """Whether a run was made with what its cell's stages would read of params.yaml now."""
    within = {f"{key}." if key else "" for key in read}
    its, todays = leaves_read(run.params, within), leaves_read(cell.params(params), within)
    # What is in today's params.yaml alone was a constant of the code then.
    return bool(its) and not any(key in its for key, *_ in differences("", todays, its))


def leaves_read(params: Mapping[str, Any], read: Iterable[str], set_by_cell: Iterable[str] = ()) -> dict[str, Any]:
    """The leaves of params by dotted key: what is read, without what the cell sets."""
    within, without = tuple(read), tuple(f"{key}." for key in set_by_cell)
    leaves = flatten(params).items()
    return {key: value for key, value in leaves if f"{key}.".startswith(within) and not f"{key}.".startswith(without)}


def _row(experiment: "Experiment", cell: "Cell", run: "Run | None", moved: Sequence[str]) -> Row:
    if run is None:
        return Row(cell.id, cell.levels, cell.seed, "not run")
    state, message = str(run.state), run.message
    known = partial(
        Row,
        cell.id,
        cell.levels,
        cell.seed,
        experiment=run.experiment,
        commit=run.commit,
        baseline=run.baseline,
        params_sha256=run.params_sha256,
    )
    if state == "finished":
        wrong = _made_otherwise(run, cell)
        if wrong or moved:
            state = "other params"
            message = f"{', '.join([*wrong, *moved])} differ from {PARAMS_FILE} and the experiment"
    if state != "finished":
        return known(state, message)
    metrics, intervals = {}, {}
    for name, metric in experiment.metrics.items():
        if _is_number(value := _report_value(run.reports, metric.source)):
            metrics[name] = float(value) / metric.scale
        found = _report_value(run.reports, metric.interval) if metric.interval else None
        if isinstance(found, list) and len(found) == 2:
            intervals[name] = (float(found[0]) / metric.scale, float(found[1]) / metric.scale)
    curves = {name: points for name, curve in experiment.curves.items() if (points := run.curves.get(curve.source))}
    return known(state, message, metrics, intervals, curves)


def _made_otherwise(run: "Run", cell: "Cell") -> list[str]:
    """The keys of a cell that a run has otherwise. One may lie within another, as `train.model.n_layer` in a preset."""
    try:
        expected = cell.params(run.params)
    except UserError:  # a section that the run did not have
        return list(cell.overrides)
    return [key for key in cell.overrides if value_at(run.params, key) != value_at(expected, key)]


def _report_value(reports: Mapping[str, Any], location: str) -> Any:
    file, _, key = location.partition(":")
    return value_at(reports.get(file), key)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def rows_csv(experiment: "Experiment", data: Tidy) -> str:
    """The rows as CSV: axes, seed, state, every metric with its unit in the heading, and where it comes from."""
    frame = pd.DataFrame(
        {
            "cell": row.cell,
            **row.levels,
            "seed": row.seed,
            "state": row.state,
            **{column: row.metrics.get(name) for name, column in _columns(experiment).items()},
            **{
                f"{name} {side}": row.intervals[name][index] if name in row.intervals else None
                for name, metric in experiment.metrics.items()
                if metric.interval
                for index, side in enumerate(SIDES)
            },
            **{source: getattr(row, source) for source in SOURCES},
        }
        for row in data.rows
    )
    return str(frame.to_csv(index=False, lineterminator="\n"))


def read_rows(experiment: "Experiment", path: Path) -> Tidy:
    """The rows of a runs.csv. Raises UserError where there is none, or where it lacks what the experiment names."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; `parrotflow table NAME` makes it")
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    columns = _columns(experiment)
    intervals = [name for name, metric in experiment.metrics.items() if metric.interval]
    wanted = [*experiment.axes, *columns.values(), *(f"{name} {side}" for name in intervals for side in SIDES)]
    if absent := [column for column in wanted if column not in frame]:
        raise UserError(f"{path}: no column {', '.join(absent)}; `parrotflow table NAME` makes it anew")
    return Tidy(
        tuple(
            Row(
                values["cell"],
                {axis: values[axis] for axis in experiment.axes},
                int(values["seed"]),
                values["state"],
                metrics={name: float(values[column]) for name, column in columns.items() if values[column]},
                intervals={
                    name: (float(values[f"{name} low"]), float(values[f"{name} high"]))
                    for name in intervals
                    if values[f"{name} low"]
                },
                **{source: values[source] for source in SOURCES},
            )
            for values in frame.to_dict("records")
        )
    )


def _columns(experiment: "Experiment") -> dict[str, str]:
    """The column of each metric, by its name."""
    return {name: f"{name} ({item.unit})" if item.unit else name for name, item in experiment.metrics.items()}
