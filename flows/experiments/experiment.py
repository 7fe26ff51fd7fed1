"""The experiment file, `experiments/NAME.yaml`: a question, the runs that answer it, and what is made of them."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from flows.experiments.rows import COLUMNS
from flows.experiments.yaml_file import (
    EXPERIMENTS,
    Axis,
    CurveColumn,
    Name,
    Overrides,
    ReportKey,
    bare_name,
)
from stages.runtime.section import Section


class Seeds(Section):
    """Repetitions: every cell of the grid runs once for each seed."""

    keys: Annotated[list[Annotated[str, Field(pattern=r"\.")]], Field(min_length=1)] = Field(default=["train.seed"])
    """The parameters that get the seed, by dotted keys."""
    values: Annotated[list[int], Field(min_length=1)] = Field(default=[0])


class Measured(Section):
    """What has a label and mostly a unit in tables and figures."""

    label: str
    unit: str = ""

    @property
    def heading(self) -> str:
        """The label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


class RunMetric(Measured):
    """A number of each run, read from a report."""

    better: Literal["lower", "higher"] | None
    """The direction in which TPE improves it; null: neither."""
    decimals: Annotated[int, Field(ge=0, le=12)] | None = None
    """Digits after the point; null: enough to show four digits of the largest number."""
    source: ReportKey
    """FILE:KEY of a JSON report."""
    scale: Annotated[float, Field(gt=0)] = 1.0
    """How many of the report's units are one of `unit`: 1e12 for FLOP shown as TFLOP."""
    interval: ReportKey | None = None
    """FILE:KEY of the run's own 95 % interval, [low, high]: that of the held-out documents, not of the seeds."""


class Curve(Measured):
    """A number of each run over its steps."""

    source: CurveColumn
    """FILE:COLUMN of a table; its first column is the horizontal axis."""
    x_label: str = "step"
    """Of the horizontal axis."""


class Fit(Section):
    """A power law through the runs: y = a x^-b."""

    x: Name
    y: Name
    """Metrics, such as compute and the loss."""


class Comparison(Section):
    """Paired differences per seed: each level of an axis against one of them, Holm-corrected together."""

    caption: str
    axis: Name
    """Whose levels are compared, at equal levels of all other axes."""
    baseline: str
    """The level against which the others are compared."""
    metrics: Annotated[list[Name], Field(min_length=1)]


class TableSpec(Section):
    """Means over seeds: a row for each combination of levels, a column for each metric."""

    caption: str
    rows: Annotated[list[Name], Field(min_length=1)]
    """Axes whose levels are the rows."""
    metrics: Annotated[list[Name], Field(min_length=1)]
    """The columns."""
    spread: Literal["sd", "interval_95"] = "interval_95"
    """Printed after each mean: the standard deviation over seeds, or the half-width of the mean's 95 % t interval."""
    data_interval: bool = False
    """Also the runs' own intervals of the metrics that have one."""


class Drawn(Section):
    """What all figures have."""

    caption: str
    log: list[Literal["x", "y"]] = Field(default_factory=list)
    """Logarithmic axes."""


class CurvesFigure(Drawn):
    """Curves of the mean over seeds, with a band from the lowest to the highest: one for each combination of levels."""

    kind: Literal["curves"]
    curve: Name
    """One of `curves`."""


class PointsFigure(Drawn):
    """A point for each run: one metric against another, such as the loss against compute."""

    kind: Literal["points"]
    x: Name
    y: Name
    by: Name
    """An axis: a marker for each of its levels."""
    fit: Name | None = None
    """One of `fits`, drawn with its 95 % band."""
    lines: list[Name] = Field(default_factory=list)
    """Metrics that are to be beaten, such as a compressor's bits per byte: a horizontal line for each."""


class LevelsFigure(Drawn):
    """A line for each combination of levels: its runs, and where it has several their mean with its 95 % t interval."""

    kind: Literal["levels"]
    x: Name
    log: list[Literal["x"]] = Field(default_factory=list)  # type: ignore[assignment]  # the other axis has names


Figure = Annotated[CurvesFigure | PointsFigure | LevelsFigure, Field(discriminator="kind")]


Limit = float | Name
"""A number; or a metric, of whose mean at the same levels."""

Relation = Literal["below", "at_most", "above", "at_least"]

Bounds = Annotated[dict[Relation, Limit], Field(min_length=1)]
"""Within which a number has to be."""


class Condition(Section):
    """A number that the runs give, with its 95 % interval, and its bounds: exactly one of the first three.

    {difference: bits_per_byte, levels: {recipe: [Muon, AdamW]}, high: {below: 0}}
    """

    mean: Name | None = None
    """A metric: its mean over the seeds."""
    difference: Name | None = None
    """A metric: its mean difference between two levels of an axis, paired by seed."""
    exponent: Name | None = None
    """One of `fits`: the exponent b of y = a x^-b."""
    levels: dict[Name, str | Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(default_factory=dict)
    """A level for each axis that has several; of a difference one axis has two, the baseline last."""
    value: Bounds | None = None
    low: Bounds | None = None
    high: Bounds | None = None
    """Of the number itself, and of the lower and the upper bound of its interval."""

    @property
    def bounds(self) -> dict[str, Bounds]:
        """Those that are given, by `value`, `low` and `high`."""
        return {name: found for name in ("value", "low", "high") if (found := getattr(self, name))}

    @property
    def sides(self) -> list[dict[str, str]]:
        """The levels whose runs are compared: those of the number, and of a difference those of its baseline."""
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
            raise ValueError("levels: a difference needs two different levels of exactly one axis, others need none")
        if self.exponent and self.levels:
            raise ValueError("levels: a fit is through all runs; give none")
        if self.exponent and any(isinstance(limit, str) for limit in self._limits()):
            raise ValueError("a fit is compared with numbers only")
        return self

    def _limits(self) -> list[Limit]:
        return [limit for bounds in self.bounds.values() for limit in bounds.values()]

    @property
    def metrics(self) -> set[str]:
        """Those that it names."""
        named = {limit for limit in self._limits() if isinstance(limit, str)}
        return named | {name for name in (self.mean, self.difference) if name}


class Claim(Section):
    """A sentence of the paper, and the conditions under which it holds."""

    says: str
    holds_if: Annotated[list[Condition], Field(min_length=1)]


class Experiment(Section):
    """An experiment file."""

    question: str
    targets: Annotated[list[str], Field(min_length=1)]
    """The stages of dvc.yaml at which a run ends; what follows them, such as publishing, is not done."""
    base: Overrides = Field(default_factory=dict)
    """Changes of params.yaml that all runs share."""
    axes: Annotated[dict[Name, Axis], Field(min_length=1)]
    """What differs between runs. `{param: KEY, values: [...]}` is short for a level a value, and `{draw: N, ...}`
    draws levels (`drawn.py`)."""
    seeds: Seeds = Field(default_factory=Seeds)
    metrics: Annotated[dict[Name, RunMetric], Field(min_length=1)]
    curves: dict[Name, Curve] = Field(default_factory=dict)
    fits: dict[Name, Fit] = Field(default_factory=dict)
    comparisons: dict[Name, Comparison] = Field(default_factory=dict)
    tables: dict[Name, TableSpec] = Field(default_factory=dict)
    figures: dict[Name, Figure] = Field(default_factory=dict)
    claims: list[Claim] = Field(default_factory=list)

    @property
    def reports(self) -> set[str]:
        """The JSON files that its metrics are read from."""
        locations = [location for metric in self.metrics.values() for location in (metric.source, metric.interval)]
        return {location.partition(":")[0] for location in locations if location}

    @property
    def curve_sources(self) -> set[str]:
        """FILE:COLUMN of its curves."""
        return {curve.source for curve in self.curves.values()}

    @model_validator(mode="after")
    def _names_exist(self) -> "Experiment":
        for place, name, known in self._references():
            if name not in known:
                raise ValueError(f"{place}: no `{name}`; there are {', '.join(known) or 'none'}")
        return self

    @model_validator(mode="after")
    def _nothing_is_told_twice(self) -> "Experiment":
        """Results are found again by these texts."""
        for kind, texts in {
            "metrics": [metric.heading for metric in self.metrics.values()],
            "claims": [claim.says for claim in self.claims],
        }.items():
            if twice := sorted({text for text in texts if texts.count(text) > 1}):
                raise ValueError(f"{kind}: two are called {', '.join(map(repr, twice))}; let them differ")
        if both := sorted(self.axes.keys() & {*self.metrics, *COLUMNS}):
            raise ValueError(f"axes: {', '.join(both)}: another column of runs.csv has this name; call it differently")
        if both := sorted(self.tables.keys() & self.comparisons.keys()):
            raise ValueError(
                f"tables, comparisons: {', '.join(both)}: a comparison is a table too; let the names differ"
            )
        return self

    @model_validator(mode="after")
    def _a_drawn_fit_is_of_the_figures_metrics(self) -> "Experiment":
        for name, figure in self.figures.items():
            if figure.kind == "points" and figure.fit in self.fits:
                fit = self.fits[figure.fit]
                if (fit.x, fit.y) != (figure.x, figure.y):
                    raise ValueError(
                        f"figures.{name}.fit: {figure.fit} is of {fit.y} against {fit.x}, "
                        f"not of {figure.y} against {figure.x}"
                    )
        return self

    def _references(self) -> Iterator[tuple[str, str, Collection[str]]]:
        """Each name that the file uses: where, the name, and those that there are."""
        axes, metrics = self.axes.keys(), self.metrics.keys()
        named = {"axis": axes, "by": axes, "rows": axes, "metrics": metrics, "x": metrics, "y": metrics}
        named |= {"curve": self.curves.keys(), "fit": self.fits.keys(), "lines": metrics}
        for kind in ("fits", "comparisons", "tables", "figures"):
            for name, item in getattr(self, kind).items():
                for key, value in item.model_dump(include={*named}, exclude_none=True).items():
                    for one in value if isinstance(value, list) else [value]:
                        yield f"{kind}.{name}.{key}", one, named[key]
        for number, claim in enumerate(self.claims):
            for index, condition in enumerate(claim.holds_if):
                place = f"claims.{number}.holds_if.{index}"
                yield from ((place, name, metrics) for name in sorted(condition.metrics))
                yield from ((place, name, self.fits.keys()) for name in [condition.exponent] if name)
                yield from ((f"{place}.levels", axis, axes) for axis in condition.levels)


def results_folder(name: str) -> Path:
    """Where the results of an experiment are stored."""
    return EXPERIMENTS / bare_name(name)
