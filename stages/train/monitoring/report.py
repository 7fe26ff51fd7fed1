"""Reports a run while it goes: the curves, the trackers, the progress line."""

import sys
import time

from torch import Tensor

from stages.train.data.batches import rows_before
from stages.train.monitoring.curves import Curves
from stages.train.monitoring.throughput import Throughput
from stages.train.monitoring.trackers import Trackers
from stages.train.params import TrainParams
from stages.train.validation import ValidationResult

LOG_SECONDS = 10.0
"""Between two lines in a log."""


class Report:
    """The main process shows and records; the others do nothing."""

    def __init__(
        self,
        params: TrainParams,
        steps: range,
        throughput: Throughput,
        curves: Curves,
        trackers: Trackers,
        enabled: bool,
    ) -> None:
        self.params = params
        self.steps = steps  # of this start, from 0
        self.throughput = throughput
        self.curves = curves
        self.trackers = trackers
        self.enabled = enabled
        self.line = ProgressLine(steps.stop, enabled)

    def step(self, done: int, loss: float, gradient_norm: Tensor, router_loss: Tensor | None) -> None:
        """The state after `done` steps. Losses in nats per token."""
        if not self.enabled:
            return
        left = seconds_left(self.params, self.steps, done, self.throughput.seconds)
        self.line.show(done, loss, self.throughput.tokens_per_second, left)
        multiplier = self.params.schedule.multiplier(done - 1, self.params.max_steps)
        rates = {name: peak * multiplier for name, peak in self.params.optimizer.peaks.items()}
        losses = {"training_loss": loss, "gradient_norm": gradient_norm.item()}
        if router_loss is not None:
            losses["router_loss"] = router_loss.item()
        for name, value in losses.items():
            self.curves.append(name, done, value)
        self.curves.append("learning_rate", done, *rates.values())
        by_optimizer = {f"learning_rate/{name}": rate for name, rate in rates.items()}
        self.trackers.log(done, losses | by_optimizer | self.throughput.metrics())

    def validation(self, done: int, measured: ValidationResult) -> None:
        """An evaluation after `done` steps."""
        if not self.enabled:
            return
        values = {"validation_loss": measured.loss, "validation_bits_per_byte": measured.bits_per_byte}
        for name, value in values.items():
            self.curves.append(name, done, value)
        self.trackers.log(done, values)


def seconds_left(params: TrainParams, steps: range, done: int, seconds: float) -> float:
    """The time until all of `steps` are done, where those before `done` took `seconds`.

    It is counted in rows: steps take longer where the batch has grown.
    """
    first, now, end = (rows_before(params, step) for step in (steps.start, done, steps.stop))
    return seconds * (end - now) / (now - first)


class ProgressLine:
    """Step, loss, speed and the time that remains."""

    def __init__(self, last_step: int, enabled: bool) -> None:
        self.last_step = last_step
        self.enabled = enabled
        self.live = sys.stdout.isatty()
        self._last = float("-inf")

    def show(self, step: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        """Show the state after `step` steps; in a log at most every `LOG_SECONDS`."""
        now = time.monotonic()
        is_last = step == self.last_step
        if not self.enabled or (not self.live and now - self._last < LOG_SECONDS and not is_last):
            return
        self._last = now
        remaining = time.strftime("%H:%M:%S", time.gmtime(seconds_left))
        text = f"step {step}/{self.last_step}  loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s  {remaining} left"
        end = "\n" if is_last or not self.live else ""
        print(f"\r{text}\x1b[K" if self.live else text, end=end, flush=True)
