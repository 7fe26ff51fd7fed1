"""The learning rate as a function of the step alone: no state to save, nothing that depends on the world size."""

import math

from stages.train.params import Schedule


def lr_multiplier(schedule: Schedule, step: int, max_steps: int) -> float:
    """The share of the peak learning rate at `step` (0-based) of `max_steps`."""
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    progress = (step - schedule.warmup_steps) / max(1, max_steps - schedule.warmup_steps)
    return schedule.final_share + (1 - schedule.final_share) * _shape(schedule, progress)


def _shape(schedule: Schedule, progress: float) -> float:
    match schedule.name:
        case "constant":
            return 1.0
        case "linear":
            return 1 - progress
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        case "wsd":
            return min(1.0, (1 - progress) / schedule.decay_share) if schedule.decay_share else 1.0
