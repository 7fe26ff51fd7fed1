"""The section `train.mixture`: which share of the tokens comes from which source, and how that changes during a run.

    mixture:
      weights: {web: 0.7, code: 0.2, books: 0.1}
      phases:
        - {after: 0.8, weights: {web: 0.3, code: 0.3, books: 0.4}}    # the last fifth of the steps

A source is the name in a document's field `source`. `*` sets the weight of all sources that are not listed.
`data/draws.py` chooses the source of each row.
"""

from itertools import pairwise
from typing import Annotated, Any, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

from stages.runtime.section import Section

OTHER_SOURCES = "*"
"""All sources without a weight of their own, taken as one."""

SourceWeights: TypeAlias = dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]


def _some_weight(weights: SourceWeights) -> SourceWeights:
    if not any(weights.values()):
        raise ValueError("no source has a weight above 0")
    return weights


class Phase(Section):
    """New weights from a step on."""

    after: int | float
    """The last step before the phase: a number, or a share of `max_steps` (0.8: the phase is the last fifth)."""
    weights: SourceWeights
    """As `Mixture.weights`."""

    _has_some_weight = field_validator("weights")(_some_weight)

    @field_validator("after", mode="plain")
    @classmethod
    def _step_or_share(cls, value: Any) -> int | float:
        if (type(value) is int and value >= 1) or (type(value) is float and 0 < value < 1):
            return value
        raise ValueError("expected a step such as 800, or a share of all steps such as 0.8")

    def start(self, max_steps: int) -> int:
        """The phase's first step, from 0, in a run of `max_steps`."""
        return self.after if isinstance(self.after, int) else round(self.after * max_steps)


class Mixture(Section):
    """The share of the tokens that come from each source."""

    weights: SourceWeights
    """Source -> weight; only the ratios count. Sources with weight 0 or no weight are not trained on."""
    phases: list[Phase]
    """Later weights, in the order of their steps; a source without a weight there is no longer read."""

    _has_some_weight = field_validator("weights")(_some_weight)

    @model_validator(mode="after")
    def _named_everywhere(self) -> Self:
        named = {source for weights in self.all_weights for source in weights}
        for number, weights in enumerate(self.all_weights):
            if OTHER_SOURCES in weights and (missing := sorted(named - set(weights))):
                where = f"phases.{number - 1}.weights" if number else "weights"
                raise ValueError(
                    f"{where} has `{OTHER_SOURCES}`, the sources without a weight of their own, and none for "
                    f"`{missing[0]}`, "
                    "which has one elsewhere: give it one there too (0 leaves it out)"
                )
        return self

    @property
    def all_weights(self) -> list[SourceWeights]:
        """The initial weights, then those of each phase."""
        return [self.weights, *(phase.weights for phase in self.phases)]

    @property
    def sources(self) -> list[str]:
        """The sources that are trained on, sorted, so that their order in params.yaml has no effect."""
        return sorted({source for weights in self.all_weights for source, weight in weights.items() if weight})

    @property
    def named(self) -> set[str]:
        """The sources with a weight of their own, 0 included."""
        return {source for weights in self.all_weights for source in weights} - {OTHER_SOURCES}

    def starts(self, max_steps: int) -> list[int]:
        """The first step, from 0, of each of `all_weights`."""
        return [0, *(phase.start(max_steps) for phase in self.phases)]

    def check_steps(self, max_steps: int) -> None:
        """Raise ValueError if phases are not in order, or begin after the end of the run."""
        starts = self.starts(max_steps)
        if any(start >= later for start, later in pairwise(starts)):
            raise ValueError(
                f"with train.max_steps = {max_steps} the phases begin after the steps "
                f"{', '.join(map(str, starts[1:]))}; each must begin later than the one before it, and after step 1"
            )
        if starts[-1] >= max_steps:
            raise ValueError(
                f"no step follows {starts[-1]}, after which a phase begins (train.max_steps = {max_steps}); "
                "remove it or train longer"
            )
