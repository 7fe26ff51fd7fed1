"""Where training keeps what a run has written so far: its folder among the checkpoints, and its exported steps.

    .parrotflow/checkpoints/FINGERPRINT/exports/step-00000100-of-500/    the model of one of `train.export_steps`

An exported step appears whole, and stays until the run has ended and the model folder has it.
"""

from pathlib import Path

CHECKPOINTS = Path(".parrotflow/checkpoints")
"""A folder for each run, named by its fingerprint."""


def steps_to_export(export_steps: list[int] | str, max_steps: int) -> list[int]:
    """The steps that `train.export_steps` of a run of `max_steps` means, increasing.

    `log2` are those of Pythia (Biderman et al. 2023, section 2.1) without its step 0: 1, 2, 4, ... 512, then every
    1000. The rule does not depend on the run's length, so a longer run exports what a shorter one did, and more.
    """
    if isinstance(export_steps, list):
        return sorted(export_steps)
    steps = [*(2**exponent for exponent in range(10)), *range(1000, max_steps + 1, 1000)]
    return [step for step in steps if step <= max_steps]


def export_path(folder: Path, step: int, max_steps: int) -> Path:
    """The model after `step` of a run of `max_steps`, in the run's folder."""
    return folder / "exports" / f"step-{step:08d}-of-{max_steps}"


def all_exports() -> list[Path]:
    """The exported steps of all runs."""
    return sorted(CHECKPOINTS.glob("*/exports/step-*-of-*"))
