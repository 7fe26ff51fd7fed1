"""The learning rate as a function of the step alone: no state to save, nothing that depends on the world size."""

import math

from stages.train.params import Schedule


def lr_multiplier(schedule: Schedule, step: int, max_steps: int) -> float:
    """The share of the peak learning rate at `step` (0-based) of `max_steps`."""
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    shape = _shape(schedule, step, max_steps)
    return schedule.final_share + (1 - schedule.final_share) * shape


def _shape(schedule: Schedule, step: int, max_steps: int) -> float:
    """From 1 at the end of the warm-up towards 0 at the end of the run."""
    progress = (step - schedule.warmup_steps) / max(1, max_steps - schedule.warmup_steps)
    match schedule.name:
        case "constant":
            return 1.0
        case "linear":
            return 1 - progress
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        case "wsd":
            decay = schedule.decay_steps(max_steps)
            return min(1.0, (max_steps - step) / decay) if decay else 1.0
