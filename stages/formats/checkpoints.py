"""Where training keeps what a run has written so far: its folder among the checkpoints, and its exported steps.

    .parrotflow/checkpoints/FINGERPRINT/exports/step-00000100-of-500/    the model of one of `train.export_steps`

An exported step appears whole, and stays until the run has ended and the model folder has it.
"""

from pathlib import Path

CHECKPOINTS = Path(".parrotflow/checkpoints")
"""A folder for each run, named by its fingerprint."""


def export_path(folder: Path, step: int, max_steps: int) -> Path:
    """The model after `step` of a run of `max_steps`, in the run's folder."""
    return folder / "exports" / f"step-{step:08d}-of-{max_steps}"


def all_exports() -> list[Path]:
    """The exported steps of all runs."""
    return sorted(CHECKPOINTS.glob("*/exports/step-*-of-*"))
