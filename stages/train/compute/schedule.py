"""The learning rate over the steps: the section `train.schedule`."""

import math
from typing import Annotated, Literal

from pydantic import Field

from stages.runtime.section import Section
from stages.train.compute.optim.settings import Fraction


class Schedule(Section):
    """The learning rate as a share of its peak. It depends only on the step, so there is no state to save."""

    name: Literal["cosine", "linear", "constant", "wsd"]
    """wsd holds the peak until the last `decay_share` of all steps (warm-up, stable, decay)."""
    warmup_steps: Annotated[int, Field(ge=0)]
    """Steps of linear growth from 0 to the peak."""
    final_share: Fraction
    """The final rate as a share of the peak."""
    decay_share: Fraction
    """Share of all steps, including warm-up, in which wsd decays; unused by the others."""

    def decay_steps(self, max_steps: int) -> float:
        """The number of steps at the end of a run in which wsd decays."""
        return self.decay_share * max_steps if self.name == "wsd" else 0.0

    def multiplier(self, step: int, max_steps: int) -> float:
        """The share of the peak learning rate at `step` (from 0) of `max_steps`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        return self.final_share + (1 - self.final_share) * self._shape(step, max_steps)

    def _shape(self, step: int, max_steps: int) -> float:
        """From 1 at the end of the warm-up toward 0 at the end of the run."""
        progress = (step - self.warmup_steps) / max(1, max_steps - self.warmup_steps)
        match self.name:
            case "constant":
                return 1.0
            case "linear":
                return 1 - progress
            case "cosine":
                return 0.5 * (1 + math.cos(math.pi * progress))
            case "wsd":
                decay = self.decay_steps(max_steps)
                return min(1.0, (max_steps - step) / decay) if decay else 1.0
