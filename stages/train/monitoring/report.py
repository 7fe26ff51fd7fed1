"""Reports a run's progress: the curves, the trackers, the progress line.

The trackers are Accelerate's, which ignores one if its package is missing; `check_trackers` refuses that.
"""

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import Tensor

from stages.runtime.errors import UserError
from stages.runtime.section import flatten
from stages.train.checkpoint.curves import BITS_BY_SOURCE, LEARNING_RATE, VALIDATION_BITS, VALIDATION_LOSS, CurveFiles
from stages.train.monitoring.params import MonitoringParams
from stages.train.monitoring.throughput import Throughput
from stages.train.monitoring.validation import ValidationResult
from stages.train.params import TrainParams


class Reporter:
    """Shows and records progress in the main process; does nothing in the others."""

    def __init__(
        self, params: TrainParams, steps: range, throughput: Throughput, curves: CurveFiles, accelerator: Accelerator
    ) -> None:
        self.params = params
        self.steps = steps  # that this process runs, from 0
        self.throughput = throughput
        self.curves = curves
        self.accelerator = accelerator
        self.line = ProgressLine(steps.stop)

    def step(self, done: int, loss: float, gradient_norm: Tensor, aux_loss: Tensor | None) -> None:
        """Report the state after `done` steps. Losses are in nats per token."""
        if not self.accelerator.is_main_process:
            return
        left = seconds_left(self.steps, done, self.throughput.seconds)
        self.line.show(done, loss, self.throughput.tokens_per_second, left)
        multiplier = self.params.schedule.multiplier(done - 1, self.params.max_steps)
        rates = {name: peak * multiplier for name, peak in self.params.optimizer.peaks.items()}
        self.curves.append(LEARNING_RATE, done, rates)
        values = {"training_loss": loss, "gradient_norm": gradient_norm.item()}
        if aux_loss is not None:
            values["aux_loss"] = aux_loss.item()
        by_optimizer = {f"{LEARNING_RATE}/{name}": rate for name, rate in rates.items()}
        self._record(done, values, by_optimizer | self.throughput.metrics())

    def validation(self, done: int, measured: ValidationResult) -> None:
        """Report a measurement after `done` steps."""
        if self.accelerator.is_main_process:
            values = {VALIDATION_LOSS: measured.loss, VALIDATION_BITS: measured.bits_per_byte}
            if measured.by_source:
                self.curves.append(BITS_BY_SOURCE, done, measured.by_source)
            self._record(done, values, {f"{VALIDATION_BITS}/{name}": bits for name, bits in measured.by_source.items()})

    def _record(self, done: int, values: dict[str, float], others: dict[str, float]) -> None:
        """Send `values` to the curves of their names and to the trackers, `others` only to the trackers."""
        for name, value in values.items():
            self.curves.append(name, done, {name: value})
        self.accelerator.log(values | others, step=done)


def seconds_left(steps: range, done: int, seconds: float) -> float:
    """The time until all of `steps` are done, if those up to `done` took `seconds`."""
    return seconds * (steps.stop - done) / (done - steps.start)


class ProgressLine:
    """Step, loss, speed and the time that remains."""

    def __init__(self, last_step: int) -> None:
        self.last_step = last_step
        self.live = sys.stdout.isatty()
        self._last = float("-inf")

    def show(self, step: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        """Show the state after `step` steps; in a log at most every 10 seconds."""
        now = time.monotonic()
        is_last = step == self.last_step
        if not self.live and now - self._last < 10 and not is_last:
            return
        self._last = now
        minutes, seconds = divmod(round(seconds_left), 60)
        hours = f"{minutes // 60}:" if minutes >= 60 else ""
        remaining = f"{hours}{minutes % 60:02}:{seconds:02}"
        text = f"step {step}/{self.last_step}  loss {loss:.4f}  {remaining} left  {tokens_per_second:,.0f} tokens/s"
        end = "\n" if is_last or not self.live else ""
        print(f"\r{text}\x1b[K" if self.live else text, end=end, flush=True)


PROJECT = "parrotflow"
TRACKERS = Path(".parrotflow/trackers")


def check_trackers(monitoring: MonitoringParams) -> None:
    """Raise UserError if a tracker's package is not installed."""
    for name in monitoring.trackers:
        packages = ("tensorboard", "tensorboardX") if name == "tensorboard" else (name,)
        if not any(map(find_spec, packages)):
            raise UserError(
                f"params.yaml: monitoring.trackers: `{name}` is not installed; `pip install {name}`, or remove it"
            )


def start_trackers(
    monitoring: MonitoringParams, params: TrainParams, accelerator: Accelerator, run: str, step: int
) -> None:
    """Start the trackers for the run named `run`, which continues after `step`; `accelerator.log` sends them values."""
    names = monitoring.trackers
    if not names:
        return
    # One folder per run: TensorBoard would draw two runs in one folder as one curve.
    accelerator.project_configuration.logging_dir = str(TRACKERS / run)
    # trackio's database; by default it is in the user's home.
    os.environ.setdefault("TRACKIO_DIR", str((TRACKERS / "trackio").resolve()))
    values = flatten(params.model_dump(mode="json"))
    config = {name: value if isinstance(value, str | int | float) else str(value) for name, value in values.items()}
    settings: dict[str, dict[str, Any]] = {
        "wandb": {"name": run, "id": run, "resume": "allow", "dir": str(TRACKERS / run)},
        # Points after this step are from a killed run and will be written again. TensorBoard reads files in the order
        # of their names, which differ only by the second.
        "tensorboard": {"purge_step": step + 1, "filename_suffix": f".{time.time_ns()}"},
        "trackio": {"name": run, "resume": "allow"},
        "mlflow": {"run_name": run},
    }
    try:
        (TRACKERS / run).mkdir(parents=True, exist_ok=True)
        accelerator.init_trackers(PROJECT, config=config, init_kwargs=settings)
    except Exception as error:  # trackers raise different exceptions
        raise UserError(f"params.yaml: monitoring.trackers = {names}: could not start: {error}") from error
