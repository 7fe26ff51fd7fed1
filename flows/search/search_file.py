"""The search file, `searches/NAME.yaml`: what is varied, what is measured, and how much may be spent."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from flows.experiments.yaml_file import CurveColumn, Overrides, ReportKey, named_path, read_checked
from stages.runtime.section import Section

SEARCHES = Path("searches")


class Dimension(Section):
    """One thing that is varied: a number between two bounds, or a choice."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    """Between the bounds, equal ratios are equally likely instead of equal differences."""
    step: Annotated[float, Field(gt=0)] | None = None
    """Only low, low + step, low + 2 step, ..."""
    integer: bool = False
    choices: dict[str, Overrides] | None = None
    """Names with what they change, as the levels of an experiment's axis. `[8, 16]` is short for the key's values."""

    @model_validator(mode="after")
    def _range_or_choices(self) -> "Dimension":
        if self.choices is not None:
            if self.model_fields_set != {"choices"} or not self.choices:
                raise ValueError("give either `choices`, at least one, or `low` and `high`")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give either `choices` or `low` and `high`")
        if self.low >= self.high:
            raise ValueError(f"low = {self.low:g} is not below high = {self.high:g}")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("`log` needs a `low` above 0 and no `step`")
        if self.integer and any(number % 1 for number in (self.low, self.high, self.step or 1)):
            raise ValueError("with `integer`, `low`, `high` and `step` are whole numbers")
        steps = (self.high - self.low) / self.step if self.step else 0
        if abs(steps - round(steps)) > 1e-9:
            raise ValueError(f"`high` is not a number of steps of {self.step:g} above `low`")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """Of a range."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high


class Objective(Section):
    """The number that is optimized."""

    source: ReportKey
    """FILE:KEY of a JSON report."""
    better: Literal["lower", "higher"]


class Compute(Section):
    """A budget in floating-point operations."""

    source: ReportKey
    """FILE:KEY of a JSON report: the operations of a run."""
    tflop: Annotated[float, Field(gt=0)]
    """Of all runs together, in units of 1e12. Runs without the report, stopped or failed ones, count as none."""


class Budget(Section):
    """No batch begins when one of these is spent."""

    runs: Annotated[int, Field(ge=1)] | None = None
    """Runs, also failed ones and those that were stopped early."""
    hours: Annotated[float, Field(gt=0)] | None = None
    """Wall-clock time of all calls together."""
    compute: Compute | None = None

    @model_validator(mode="after")
    def _some_bound(self) -> "Budget":
        if self.runs is None and self.hours is None and self.compute is None:
            raise ValueError("give at least one of runs, hours, compute")
        return self


class StopEarly(Section):
    """The median rule (Golovin et al. 2017, Google Vizier, section 3.2.2): runs that do badly so far are stopped."""

    curve: CurveColumn
    """FILE:COLUMN of a table whose first column is the step; better in the objective's direction."""
    steps: str = "train.max_steps"
    """Dotted key of params.yaml: the steps of a run. Runs are compared at equal shares of their steps."""
    after: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """No run is stopped before this share of its steps."""
    worse_than: Literal["median", "best_quarter"] = "median"
    """What the best value so far is compared with: of the values of earlier runs at the same share, the median, or
    the one that a quarter of them reach."""


class Search(Section):
    """A search file."""

    question: str
    targets: Annotated[list[str], Field(min_length=1)]
    """The stages of dvc.yaml at which a run ends."""
    base: Overrides = Field(default_factory=dict)
    """Changes of params.yaml that all runs share."""
    space: Annotated[dict[str, Dimension], Field(min_length=1)]
    """What is varied: a dotted key of params.yaml, a group of conf/, or any name where choices say what they change."""
    objective: Objective
    sampler: Literal["random", "tpe"] = "tpe"
    """Random, or Bayesian: the tree-structured Parzen estimator (Bergstra et al. 2011)."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the proposals."""
    at_once: Annotated[int, Field(ge=1)] = 1
    """Runs that are proposed together, before any of them has a result."""
    startup_runs: Annotated[int, Field(ge=1)] = 5
    """With this many results `tpe` begins, with this many finished runs the early stop; proposals are random before."""
    budget: Budget
    stop_early: StopEarly | None = None
    """Null: every run goes to its end."""

    @field_validator("space", mode="before")
    @classmethod
    def _named_choices(cls, space: Any) -> Any:
        """With `choices: [8, 16]` written as names with what they change."""
        if not isinstance(space, dict):
            return space
        return {
            key: item | {"choices": {_label(value): {key: value} for value in item["choices"]}}
            if isinstance(item, dict) and isinstance(item.get("choices"), list)
            else item
            for key, item in space.items()
        }

    @model_validator(mode="after")
    def _ranges_of_keys(self) -> "Search":
        for key, dimension in self.space.items():
            if dimension.choices is None and "." not in key:
                raise ValueError(f"space.{key}: a range needs a dotted key of params.yaml")
        return self

    @property
    def lower_is_better(self) -> bool:
        """The direction."""
        return self.objective.better == "lower"

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """As optuna calls it."""
        return "minimize" if self.lower_is_better else "maximize"

    @property
    def reports(self) -> set[str]:
        """The JSON files that are read of a run."""
        sources = [self.objective.source, *([self.budget.compute.source] if self.budget.compute else [])]
        return {source.partition(":")[0] for source in sources}

    @property
    def curves(self) -> set[str]:
        """FILE:COLUMN of the curves that are read of a run."""
        return {self.stop_early.curve} if self.stop_early else set()


def _label(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def search_path(name: str) -> Path:
    """The file of a search, given by its name or its path."""
    return named_path(SEARCHES, name)


def read_search(name: str) -> Search:
    """Read and check a search's file, as `read_checked`."""
    return read_checked(search_path(name), Search)
