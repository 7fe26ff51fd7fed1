"""The experiment file, `experiments/NAME.yaml`: a question, the runs that answer it, and the results made from them."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import BeforeValidator, Field, model_validator

from stages.runtime.errors import UserError, did_you_mean
from stages.runtime.section import Section, read_params_file

EXPERIMENTS = Path("experiments")


def experiment_names(_: object = None) -> list[str]:
    """Names of experiments, for the shell's completion and for commands called without one."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))


ExperimentName = Annotated[str, Parameter(completer=experiment_names)]
"""The argument of commands about one experiment."""

Overrides = dict[str, Any]
"""Changes of params.yaml: dotted keys with their values, or groups of conf/ with their choices."""

Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Level = Annotated[
    str,
    BeforeValidator(
        lambda name: str(name) if type(name) in (int, float) else name, json_schema_input_type=str | int | float
    ),
]
"""The name of a level, which may be written as a number."""
ReportKey = Annotated[str, Field(pattern=r"^[^:\s]+\.json:[^:\s]+$")]
CurveColumn = Annotated[str, Field(pattern=r"^[^:\s]+\.(tsv|csv):[^:\s]+$")]


def _levels(axis: Any) -> Any:
    """Expand an axis `{param: KEY, values: [...]}` to one level per value."""
    if not isinstance(axis, dict) or axis.keys() != {"param", "values"} or not isinstance(axis["values"], list):
        return axis
    key, names = axis["param"], [str(value) for value in axis["values"]]
    if not isinstance(key, str):
        raise ValueError(f"param = {key!r}: give one dotted key of params.yaml")
    if twice := sorted({level for level in names if names.count(level) > 1}):
        raise ValueError(f"values: {', '.join(twice)} is listed twice")
    return {level: {key: value} for level, value in zip(names, axis["values"], strict=True)}


Axis = Annotated[
    dict[Level, Overrides], Field(min_length=1), BeforeValidator(_levels, json_schema_input_type=dict[str, Any])
]
"""The levels of an axis, each a name with its overrides. `{param: KEY, values: [...]}` makes one level per value."""

COLUMNS = ("cell", "seed", "state", "experiment", "commit", "baseline", "message")
"""Columns of every runs.csv, which no axis can have as its name."""


class Seeds(Section):
    """Repetitions: every cell of the grid runs once for each seed."""

    keys: Annotated[list[Annotated[str, Field(pattern=r"\.")]], Field(min_length=1)] = Field(default=["train.seed"])
    """Dotted keys of the parameters that are set to the seed."""
    values: Annotated[list[int], Field(min_length=1)] = Field(default=[0])


class Measured(Section):
    """A column with a label and optionally a unit in tables and figures."""

    label: str
    unit: str = ""

    @property
    def heading(self) -> str:
        """The label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


class RunMetric(Measured):
    """A number of each run, read from a report."""

    decimals: Annotated[int, Field(ge=0, le=12)] | None = None
    """Digits after the point. Null: 3, or 0 if all numbers are whole."""
    source: ReportKey
    """FILE:KEY of a JSON report."""
    scale: Annotated[float, Field(gt=0)] = 1.0
    """The report's number is divided by this: 1e12 to show FLOP as TFLOP."""
    interval: ReportKey | None = None
    """FILE:KEY of the run's own 95 % interval, [low, high], over the held-out documents, not over the seeds."""


class Curve(Measured):
    """A number of each run over its steps."""

    source: CurveColumn
    """FILE:COLUMN of a table whose first column is the step."""


class Fit(Section):
    """A power law through the runs: y = a x^-b."""

    x: Identifier
    y: Identifier
    """Metrics, such as compute and the loss."""


class Comparison(Section):
    """Paired differences per seed of each level of an axis from one of them, with a common Holm correction."""

    caption: str
    axis: Identifier
    """The axis whose levels are compared, at equal levels of all other axes."""
    baseline: Level
    """The level against which the others are compared."""
    metrics: Annotated[list[Identifier], Field(min_length=1)]


class TableSpec(Section):
    """Means over seeds with their 95 % intervals: a row for each combination of levels, a column for each metric.

    A metric with an `interval` also shows the runs' own interval, in brackets.
    """

    caption: str
    rows: Annotated[list[Identifier], Field(min_length=1)]
    """Axes whose levels are the rows."""
    metrics: Annotated[list[Identifier], Field(min_length=1)]
    """The columns."""


class FigureSpec(Section):
    """The keys that all kinds of figures share."""

    caption: str
    log: list[Literal["x", "y"]] = Field(default_factory=list)
    """Logarithmic axes."""


class CurvesFigure(FigureSpec):
    """A curve of the mean over seeds for each combination of levels, with a band from the lowest to the highest."""

    kind: Literal["curves"]
    curve: Identifier
    """One of `curves`."""


class PointsFigure(FigureSpec):
    """A point for each run: one metric against another, such as the loss against compute.

    If one of `fits` is of these metrics, it is drawn with its 95 % band.
    """

    kind: Literal["points"]
    x: Identifier
    y: Identifier
    by: Identifier
    """An axis; each of its levels has its own marker."""
    joined: str | None = None
    """A prefix of several levels, such as a recipe at several sizes; they are joined by a line."""
    lines: list[Identifier] = Field(default_factory=list)
    """Metrics to beat, such as a compressor's bits per byte, drawn as horizontal lines."""


Figure = Annotated[CurvesFigure | PointsFigure, Field(discriminator="kind")]


Limit = float | Identifier
"""A number, or a metric whose mean at the same levels is the limit."""

Relation = Literal["below", "at_most", "above", "at_least"]

Bounds = Annotated[dict[Relation, Limit], Field(min_length=1)]
"""The range that a number must be in."""


class Condition(Section):
    """A number computed from the runs, with bounds on it or on its 95 % interval. Give one of the first three keys.

    {difference: bits_per_byte, levels: {recipe: [Muon, AdamW]}, high: {below: 0}}
    """

    mean: Identifier | None = None
    """The mean over the seeds of this metric."""
    difference: Identifier | None = None
    """The mean difference of this metric between two levels of an axis, paired by seed."""
    exponent: Identifier | None = None
    """One of `fits`: the exponent b of y = a x^-b."""
    levels: dict[Identifier, Level | Annotated[list[Level], Field(min_length=2, max_length=2)]] = Field(
        default_factory=dict
    )
    """One level for each axis that has several; for a difference, two levels of one axis, the baseline last."""
    value: Bounds | None = None
    low: Bounds | None = None
    high: Bounds | None = None
    """Bounds on the number, and on the lower and the upper end of its interval."""

    @property
    def bounds(self) -> dict[str, Bounds]:
        """The given bounds, by `value`, `low` and `high`."""
        return {name: bounds for name in ("value", "low", "high") if (bounds := getattr(self, name))}

    @property
    def sides(self) -> list[dict[str, str]]:
        """The levels whose runs are compared; a difference has a second entry, for its baseline."""
        return [
            {axis: level if isinstance(level, str) else level[side] for axis, level in self.levels.items()}
            for side in range(2 if self.difference else 1)
        ]

    @model_validator(mode="after")
    def _asks_something(self) -> "Condition":
        if len([name for name in (self.mean, self.difference, self.exponent) if name]) != 1:
            raise ValueError("give exactly one of mean, difference, exponent")
        if not self.bounds:
            raise ValueError("give bounds of at least one of value, low, high")
        pairs = [level for level in self.levels.values() if isinstance(level, list)]
        if len(pairs) != (self.difference is not None) or any(own == base for own, base in pairs):
            raise ValueError("levels: give two different levels of one axis for a difference, single levels otherwise")
        if self.exponent and self.levels:
            raise ValueError("levels: a fit uses all runs; remove levels")
        if self.exponent and any(isinstance(limit, str) for limit in self._limits()):
            raise ValueError("a fit can be compared with numbers only")
        return self

    def _limits(self) -> list[Limit]:
        return [limit for bounds in self.bounds.values() for limit in bounds.values()]

    @property
    def metrics(self) -> set[str]:
        """The metrics in the condition."""
        named = {limit for limit in self._limits() if isinstance(limit, str)}
        return named | {name for name in (self.mean, self.difference) if name}


class Claim(Section):
    """A sentence of the paper and the conditions under which it holds."""

    says: str
    holds_if: Annotated[list[Condition], Field(min_length=1)]


class Experiment(Section):
    """An experiment file."""

    question: str
    targets: Annotated[list[str], Field(min_length=1)]
    """The last stages of a run; later stages, such as publishing, do not run."""
    base: Overrides = Field(default_factory=dict)
    """Changes of params.yaml in all runs."""
    axes: Annotated[dict[Identifier, Axis], Field(min_length=1)]
    """The differences between runs. `{param: KEY, values: [...]}` makes one level per value, and `{draw: N, ...}` draws
    levels (`drawn.py`)."""
    seeds: Seeds = Field(default_factory=Seeds)
    metrics: Annotated[dict[Identifier, RunMetric], Field(min_length=1)]
    curves: dict[Identifier, Curve] = Field(default_factory=dict)
    fits: dict[Identifier, Fit] = Field(default_factory=dict)
    comparisons: dict[Identifier, Comparison] = Field(default_factory=dict)
    tables: dict[Identifier, TableSpec] = Field(default_factory=dict)
    figures: dict[Identifier, Figure] = Field(default_factory=dict)
    claims: list[Claim] = Field(default_factory=list)

    @property
    def reports(self) -> set[str]:
        """The JSON files of its metrics."""
        locations = [location for metric in self.metrics.values() for location in (metric.source, metric.interval)]
        return {location.partition(":")[0] for location in locations if location}

    @property
    def curve_sources(self) -> set[str]:
        """FILE:COLUMN of its curves."""
        return {curve.source for curve in self.curves.values()}

    @model_validator(mode="after")
    def _names_exist(self) -> "Experiment":
        for key, name, known in self._references():
            if name not in known:
                raise ValueError(f"{key}: no `{name}`; choose from: {', '.join(known) or 'none'}")
        return self

    @model_validator(mode="after")
    def _no_two_results_have_one_name(self) -> "Experiment":
        if both := sorted(self.axes.keys() & {*self.metrics, *COLUMNS}):
            raise ValueError(f"axes: {', '.join(both)}: another column of runs.csv has this name; rename the axis")
        if both := sorted(self.tables.keys() & self.comparisons.keys()):
            raise ValueError(f"tables, comparisons: {', '.join(both)}: a comparison is a table too; rename one of them")
        return self

    def _references(self) -> Iterator[tuple[str, str, Collection[str]]]:
        """Yield each reference in the file: its dotted key, the name, and the names that exist."""
        axes, metrics = self.axes.keys(), self.metrics.keys()
        named = {"axis": axes, "by": axes, "rows": axes, "metrics": metrics, "x": metrics, "y": metrics}
        named |= {"curve": self.curves.keys(), "lines": metrics}
        for kind in ("fits", "comparisons", "tables", "figures"):
            for name, item in getattr(self, kind).items():
                for key, value in item.model_dump(include={*named}, exclude_none=True).items():
                    for reference in value if isinstance(value, list) else [value]:
                        yield f"{kind}.{name}.{key}", reference, named[key]
        for number, claim in enumerate(self.claims):
            for index, condition in enumerate(claim.holds_if):
                key = f"claims.{number}.holds_if.{index}"
                yield from ((key, name, metrics) for name in sorted(condition.metrics))
                yield from ((key, name, self.fits.keys()) for name in [condition.exponent] if name)
                yield from ((f"{key}.levels", axis, axes) for axis in condition.levels)


def experiment_path(name: str) -> Path:
    """The file of an experiment, given by its name or its path."""
    path = Path(name)
    return path if path.suffix in (".yaml", ".yml") else EXPERIMENTS / f"{path.name}.yaml"


def bare_name(name: str) -> str:
    """The name of an experiment, given by its name or its path."""
    return experiment_path(name).stem


def read_values(path: Path) -> dict[str, Any]:
    """The plain values of a file. Raises UserError if it does not exist."""
    if not path.is_file():
        names = sorted(file.stem for file in path.parent.glob("*.yaml"))
        listed = f"not found; {path.parent}/ has {', '.join(names) or 'none'}"
        raise UserError(f"{path}: {listed}{did_you_mean(path.stem, names)}")
    return read_params_file(path)


def results_folder(name: str) -> Path:
    """The folder of an experiment's results."""
    return EXPERIMENTS / bare_name(name)
