"""Where runs can be followed from elsewhere: wandb, tensorboard, trackio, mlflow, by Accelerate's trackers.

Accelerate ignores a tracker whose package is missing, so that is checked here, before anything runs.
"""

import os
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from stages.runtime.entry import UserError
from stages.runtime.section import flatten
from stages.train.params import TrainParams

PROJECT = "parrotflow"
TRACKERS = Path(".parrotflow/trackers")


def check_trackers(params: TrainParams) -> None:
    """Raise UserError where a tracker's package is not installed."""
    for name in params.trackers:
        packages = ("tensorboard", "tensorboardX") if name == "tensorboard" else (name,)
        if not any(map(find_spec, packages)):
            raise UserError(
                f"params.yaml: train.trackers: `{name}` is not installed; `pip install {name}`, or take it off the list"
            )


def start_trackers(params: TrainParams, accelerator: Accelerator, run: str, step: int) -> None:
    """Start those that the parameters name for the run of that name, from `step` on; `accelerator.log` then records."""
    if not params.trackers:
        return
    # A folder per run: TensorBoard would show the points of two runs in one folder as one curve.
    accelerator.project_configuration.logging_dir = str(TRACKERS / run)
    # Where trackio keeps its database; by default it is in the user's home.
    os.environ.setdefault("TRACKIO_DIR", str((TRACKERS / "trackio").resolve()))
    values = flatten(params.model_dump(mode="json"))
    config = {name: one if isinstance(one, str | int | float) else str(one) for name, one in values.items()}
    try:
        (TRACKERS / run).mkdir(parents=True, exist_ok=True)
        accelerator.init_trackers(PROJECT, config=config, init_kwargs=_settings(run, step))
    except Exception as error:  # each tracker fails to log in in its own way
        raise UserError(f"params.yaml: train.trackers = {params.trackers}: could not start: {error}") from error


def _settings(run: str, step: int) -> dict[str, dict[str, Any]]:
    """What each tracker is told beyond the project: the run, where its files go, and where the run continues."""
    return {
        "wandb": {"name": run, "id": run, "resume": "allow", "dir": str(TRACKERS / run)},
        # Points after this step are of a killed run and come again. TensorBoard names a file by the second, and reads
        # the files in the order of their names.
        "tensorboard": {"purge_step": step + 1, "filename_suffix": f".{time.time_ns()}"},
        "trackio": {"name": run, "resume": "allow"},
        "mlflow": {"run_name": run},
    }
