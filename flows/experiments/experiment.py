"""The experiment file, `experiments/NAME.yaml`: a question, the runs that answer it, and what is made of their results.

Read as params.yaml is: every key known, every value of its type, and one message for each fault.
"""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from stages.runtime.entry import UserError
from stages.runtime.section import Section, SectionT, read_params_file

EXPERIMENTS = Path("experiments")

Overrides = dict[str, Any]
"""What a run changes: a dotted key of params.yaml with its value, or a group of conf/ with its choice."""

Axis = dict[str, Overrides]
"""The levels of an axis, each a name with its overrides."""

Levels = Annotated[Axis, Field(min_length=1)]

AxisName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
ReportKey = Annotated[str, Field(pattern=r"^[^:\s]+\.json:[^:\s]+$")]
CurveColumn = Annotated[str, Field(pattern=r"^[^:\s]+\.(tsv|csv):[^:\s]+$")]


class Seeds(Section):
    """Repetitions: every cell of the grid runs once for each seed."""

    keys: Annotated[list[str], Field(min_length=1)]
    """The parameters that get the seed."""
    values: Annotated[list[int], Field(min_length=1)]
    """The seeds."""


class Measured(Section):
    """What has a label and a unit."""

    label: str
    """In tables and figures."""
    unit: str
    """Empty for a number without one."""

    @property
    def heading(self) -> str:
        """The label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


class Metric(Measured):
    """A number of each run, read from a report."""

    better: Literal["lower", "higher"] | None
    """Null: neither, and no value is marked as the best."""
    decimals: Annotated[int, Field(ge=0, le=12)]
    """Digits after the point."""
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
    x_label: str
    """Of the horizontal axis."""


class Fit(Section):
    """A power law y = a x^-b, or y = a x^-b + c, through the runs."""

    x: Name
    """A metric, such as compute."""
    y: Name
    """A metric, such as the loss."""
    offset: bool
    """With the constant c, an irreducible loss."""


class Comparison(Section):
    """Paired differences per seed: each level of an axis against one of them, Holm-corrected together."""

    caption: str
    """What is compared."""
    axis: AxisName
    """Whose levels are compared, at equal levels of all other axes."""
    baseline: str
    """The level against which the others are compared."""
    metrics: Annotated[list[Name], Field(min_length=1)]
    """Compared numbers."""


class Table(Section):
    """Means over seeds: a row for each combination of levels, a column for each metric."""

    caption: str
    """What the table shows."""
    rows: Annotated[list[AxisName], Field(min_length=1)]
    """Axes whose levels are the rows."""
    metrics: Annotated[list[Name], Field(min_length=1)]
    """Columns."""
    spread: Literal["sd", "interval_95"]
    """Printed after each mean: the standard deviation over seeds, or the half-width of the mean's 95 % t interval."""
    data_interval: bool = False
    """Also the runs' own intervals of the metrics that have one."""


class CurvesFigure(Section):
    """Curves of the mean over seeds, with a band from the lowest to the highest: one for each combination of levels."""

    kind: Literal["curves"]
    caption: str
    """What the figure shows."""
    curve: Name
    """One of `curves`."""
    log: list[Literal["x", "y"]] = Field(default_factory=list)
    """Logarithmic axes."""


class PointsFigure(Section):
    """A point for each run: one metric against another, such as the loss against compute."""

    kind: Literal["points"]
    caption: str
    """What the figure shows."""
    x: Name
    """A metric."""
    y: Name
    """A metric."""
    by: AxisName
    """A marker for each level."""
    fit: Name | None = None
    """One of `fits`, drawn with its 95 % band."""
    log: list[Literal["x", "y"]] = Field(default_factory=list)
    """Logarithmic axes."""


class LevelsFigure(Section):
    """A line for each combination of levels: its runs, and where it has several their mean with its 95 % t interval."""

    kind: Literal["levels"]
    caption: str
    """What the figure shows."""
    x: Name
    """A metric."""
    log: list[Literal["x"]] = Field(default_factory=list)
    """Logarithmic axes."""


Figure = Annotated[CurvesFigure | PointsFigure | LevelsFigure, Field(discriminator="kind")]


Limit = float | Name
"""A number; or a metric, of whose mean at the same levels."""


class Bounds(Section):
    """Within which a number has to be."""

    below: Limit | None = None
    at_most: Limit | None = None
    above: Limit | None = None
    at_least: Limit | None = None

    @model_validator(mode="after")
    def _some_bound(self) -> "Bounds":
        if not self.model_fields_set:
            raise ValueError("give at least one of below, at_most, above, at_least")
        return self


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
    levels: dict[AxisName, str | Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(default_factory=dict)
    """A level for each axis that has several; of a difference one axis has two, the baseline last."""
    value: Bounds | None = None
    """Of the number itself."""
    low: Bounds | None = None
    """Of the lower bound of its interval."""
    high: Bounds | None = None
    """Of the upper bound of its interval."""

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
        return [limit for bounds in self.bounds.values() for limit in bounds.model_dump(exclude_none=True).values()]

    @property
    def metrics(self) -> set[str]:
        """Those that it names."""
        named = {limit for limit in self._limits() if isinstance(limit, str)}
        return named | {name for name in (self.mean, self.difference) if name}


class Claim(Section):
    """A sentence of the paper, and the conditions under which it holds."""

    says: str
    """In words."""
    holds_if: Annotated[list[Condition], Field(min_length=1)]
    """All of them."""


class Setting(Section):
    """One size of the experiment: what it changes of the rest of the file."""

    minutes: Annotated[float, Field(gt=0)] | None
    """Planned time on 2 cores; null: it needs other hardware."""
    base: Overrides = Field(default_factory=dict)
    """Added to `base`."""
    axes: dict[AxisName, Levels] = Field(default_factory=dict)
    """In place of the axes of the same name."""
    seeds: Annotated[list[int], Field(min_length=1)] | None = None
    """In place of `seeds.values`."""


class Settings(Section):
    """The two sizes in which every experiment exists."""

    small: Setting
    """Completes on 2 cores."""
    full: Setting
    """That of the paper."""


SettingName = Literal["small", "full"]


class Experiment(Section):
    """An experiment file."""

    question: str
    """What the runs are to answer."""
    targets: Annotated[list[str], Field(min_length=1)]
    """The stages of dvc.yaml at which a run ends; what follows them, such as publishing, is not done."""
    base: Overrides = Field(default_factory=dict)
    """Changes of params.yaml that all runs share."""
    axes: Annotated[dict[AxisName, Levels], Field(min_length=1)]
    """What differs between runs. `{param: KEY, values: [...]}` is short for a level for each value."""
    seeds: Seeds
    """Repetitions."""
    metrics: Annotated[dict[Name, Metric], Field(min_length=1)]
    """Numbers of a run."""
    curves: dict[Name, Curve] = Field(default_factory=dict)
    """Numbers over the steps of a run."""
    fits: dict[Name, Fit] = Field(default_factory=dict)
    """Power laws."""
    comparisons: dict[Name, Comparison] = Field(default_factory=dict)
    """Paired differences."""
    tables: dict[Name, Table] = Field(default_factory=dict)
    """Means over seeds."""
    figures: dict[Name, Figure] = Field(default_factory=dict)
    """Plots."""
    claims: list[Claim] = Field(default_factory=list)
    """Sentences that are checked."""
    settings: Settings
    """Its sizes."""

    @property
    def reports(self) -> set[str]:
        """The JSON files that its metrics are read from."""
        locations = [location for metric in self.metrics.values() for location in (metric.source, metric.interval)]
        return {location.partition(":")[0] for location in locations if location}

    @property
    def curve_sources(self) -> set[str]:
        """FILE:COLUMN of its curves."""
        return {curve.source for curve in self.curves.values()}

    @field_validator("settings", mode="before")
    @classmethod
    def _settings_with_levels(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            name: setting | {"axes": levels_of(setting["axes"])}
            if isinstance(setting, dict) and "axes" in setting
            else setting
            for name, setting in value.items()
        }

    @field_validator("axes", mode="before")
    @classmethod
    def _axes_with_levels(cls, value: Any) -> Any:
        return levels_of(value)

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

    def _references(self) -> list[tuple[str, str, Any]]:
        found: list[tuple[str, str, Any]] = []
        axes = self.axes
        found += [(f"settings.{size}.axes", axis, axes) for size, s in self.settings for axis in s.axes]
        described: list[tuple[str, Any]] = [
            (f"{kind}.{name}", item)
            for kind in ("fits", "comparisons", "tables", "figures")
            for name, item in getattr(self, kind).items()
        ]
        for place, item in described:
            values = item.model_dump()
            found += [(f"{place}.{key}", values[key], axes) for key in ("axis", "by") if values.get(key)]
            found += [(f"{place}.rows", axis, axes) for axis in values.get("rows", ())]
            found += [(f"{place}.metrics", name, self.metrics) for name in values.get("metrics", ())]
            found += [(f"{place}.{key}", values[key], self.metrics) for key in ("x", "y") if key in values]
            found += [(f"{place}.curve", values["curve"], self.curves)] if "curve" in values else []
            found += [(f"{place}.fit", values["fit"], self.fits)] if values.get("fit") else []
        for number, claim in enumerate(self.claims):
            for index, condition in enumerate(claim.holds_if):
                place = f"claims.{number}.holds_if.{index}"
                found += [(place, name, self.metrics) for name in sorted(condition.metrics)]
                found += [(place, condition.exponent, self.fits)] if condition.exponent else []
                found += [(f"{place}.levels", axis, axes) for axis in condition.levels]
        return found


def levels_of(axes: Any) -> Any:
    """The axes with `{param: KEY, values: [...]}` written as levels."""
    if not isinstance(axes, dict):
        return axes
    return {
        name: _levels_of_values(name, axis)
        if isinstance(axis, dict) and axis.keys() == {"param", "values"} and isinstance(axis["values"], list)
        else axis
        for name, axis in axes.items()
    }


def _levels_of_values(name: str, axis: dict[str, Any]) -> Axis:
    key, names = axis["param"], [str(value) for value in axis["values"]]
    if not isinstance(key, str):
        raise ValueError(f"{name}.param = {key!r}: give one dotted key of params.yaml")
    if twice := sorted({level for level in names if names.count(level) > 1}):
        raise ValueError(f"{name}.values: {', '.join(twice)} is there twice")
    return {level: {key: value} for level, value in zip(names, axis["values"], strict=True)}


def bare_name(name: str) -> str:
    """The name of an experiment or a search that is given by its name or by its file's path."""
    path = Path(name)
    return path.stem if _is_file_name(name) else path.name


def named_path(folder: Path, name: str) -> Path:
    """The file of an experiment or a search in its folder, given by its name or its path."""
    return Path(name) if _is_file_name(name) else folder / f"{bare_name(name)}.yaml"


def _is_file_name(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def experiment_path(name: str) -> Path:
    """The file of an experiment, given by its name or its path."""
    return named_path(EXPERIMENTS, name)


def results_folder(name: str, size: str) -> Path:
    """Where the results of an experiment are stored."""
    return EXPERIMENTS / bare_name(name) / size


def read_experiment(name: str) -> Experiment:
    """Read and check an experiment's file. Raises UserError that names each bad key, its value and what is allowed."""
    return read_checked(experiment_path(name), Experiment)


def read_checked(path: Path, model: type[SectionT]) -> SectionT:
    """Read a file of this model. Raises UserError that names each bad key, its value and what is allowed."""
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml")))
        raise UserError(f"{path}: not found; {path.parent}/ has {there or 'none'}")
    try:
        values = json.dumps(read_params_file(path))
    except TypeError as error:  # a date, which YAML knows and JSON does not
        raise UserError(f"{path}: {error}; write it in quotes") from None
    try:
        return model.model_validate_json(values)
    except ValidationError as error:
        raise UserError("\n".join(_describe(path, line) for line in error.errors())) from None


def _describe(path: Path, line: Any) -> str:
    key = ".".join(str(part) for part in line["loc"])
    place = f"{path}: {key}" if key else str(path)
    match line["type"]:
        case "extra_forbidden":
            return f"{place}: unknown key (value {line['input']!r}); correct its name or remove it"
        case "missing":
            return f"{place}: missing"
        case "value_error":
            return f"{place}: {re.sub(r'^Value error, ', '', line['msg'])}"
        case _:
            return f"{place} = {line['input']!r}: {line['msg']}"
