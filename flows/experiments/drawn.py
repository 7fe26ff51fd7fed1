"""Axes whose levels are drawn at random.

    axes:
      rate:
        draw: 24
        space: {train.optimizer.adamw_learning_rate: {low: 0.001, high: 0.03, log: true}}

The levels depend only on the file; a larger `draw` adds to the earlier ones.
"""

from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from flows.experiments.experiment import Overrides
from stages.runtime.section import Section

Value = str | int | float


class Dimension(Section):
    """A drawn value: a number between two bounds, or one of several choices."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    """Draw uniformly in the logarithm."""
    integer: bool = False
    choices: Annotated[list[Value], Field(min_length=1)] | None = None
    """Values of the key, or choices of a group of conf/."""

    @model_validator(mode="after")
    def _is_range_or_choices(self) -> "Dimension":
        if self.choices is not None:
            if self.model_fields_set != {"choices"}:
                raise ValueError("give either `choices` or `low` and `high`")
        elif self.low is None or self.high is None or self.low >= self.high:
            raise ValueError("give `choices`, or `low` and a larger `high`")
        elif self.log and self.low <= 0:
            raise ValueError("`log` needs a `low` above 0")
        elif self.integer and (self.low % 1 or self.high % 1):
            raise ValueError("with `integer`, `low` and `high` are whole numbers")
        return self

    def value(self, share: float) -> Value:
        """The value at a share in [0, 1) of the choices or of the way from `low` to `high`.

        Numbers are rounded to three digits, which are equal on machines whose last bits differ.
        """
        if self.choices is not None:
            return self.choices[int(share * len(self.choices))]
        assert self.low is not None
        assert self.high is not None
        high = self.high + self.integer  # each whole number has the same share
        drawn = self.low * (high / self.low) ** share if self.log else self.low + (high - self.low) * share
        return int(drawn) if self.integer else min(max(float(f"{drawn:.3g}"), self.low), self.high)


class Draw(Section):
    """An axis whose levels are drawn."""

    draw: Annotated[int, Field(ge=1)]
    """The number of levels."""
    space: Annotated[dict[str, Dimension], Field(min_length=1)]
    """Dotted keys of params.yaml, or groups of conf/ with `choices`."""
    seed: Annotated[int, Field(ge=0)] = 0

    def levels(self) -> dict[str, Overrides]:
        """The distinct levels by their labels; fewer than `draw` if the space has no more."""
        random, levels, repeats = np.random.default_rng(self.seed), dict[str, Overrides](), 0
        while len(levels) < self.draw and repeats < 100:  # this many repeated levels: the space is exhausted
            level = {key: dimension.value(random.random()) for key, dimension in self.space.items()}
            label = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in level.items())
            repeats = repeats + 1 if label in levels else 0
            levels[label] = level
        return levels
