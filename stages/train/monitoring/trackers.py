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
from stages.train.params import TrainParams

PROJECT = "parrotflow"
TRACKERS = Path(".parrotflow/trackers")


def check_trackers(params: TrainParams) -> None:
    """Raise UserError where a tracker's package is not installed."""
    for name in params.trackers:
        if not any(find_spec(package) for package in _packages(name)):
            raise UserError(
                f"params.yaml: train.trackers: `{name}` is not installed; `pip install {name}`, or take it off the list"
            )


def _packages(name: str) -> tuple[str, ...]:
    return ("tensorboard", "tensorboardX") if name == "tensorboard" else (name,)


class Trackers:
    """The trackers that the parameters name; none by default."""

    def __init__(self, params: TrainParams, accelerator: Accelerator, run: str, step: int) -> None:
        """Starts them for the run of that name, from `step` on."""
        self.accelerator = accelerator
        self.enabled = bool(params.trackers)
        if not self.enabled:
            return
        # A folder per run: TensorBoard would show the points of two runs in one folder as one curve.
        accelerator.project_configuration.logging_dir = str(TRACKERS / run)
        # Where trackio keeps its database; by default it is in the user's home.
        os.environ.setdefault("TRACKIO_DIR", str((TRACKERS / "trackio").resolve()))
        settings = _settings(run, step)
        try:
            (TRACKERS / run).mkdir(parents=True, exist_ok=True)
            accelerator.init_trackers(PROJECT, config=_flat(params.model_dump(mode="json")), init_kwargs=settings)
        except Exception as error:  # each tracker fails to log in in its own way
            raise UserError(f"params.yaml: train.trackers = {params.trackers}: could not start: {error}") from error

    def log(self, step: int, values: dict[str, float]) -> None:
        """Record values at a step."""
        if self.enabled:
            self.accelerator.log(values, step=step)

    def finish(self) -> None:
        """The run is complete. Not `end_training`, which also frees the process groups (see `supervision.leave`)."""
        for tracker in self.accelerator.trackers:
            tracker.finish()


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


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, str | int | float | bool]:
    flat: dict[str, str | int | float | bool] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, str | int | float | bool) else str(value)
    return flat
