"""Tells how a run goes: the curves, the trackers, the progress line."""

from torch import Tensor

from stages.train.monitoring.curves import Curves
from stages.train.monitoring.progress import ProgressLine
from stages.train.monitoring.throughput import Clock
from stages.train.monitoring.trackers import Trackers
from stages.train.monitoring.validation import ValidationResult
from stages.train.optim.schedule import lr_multiplier
from stages.train.params import TrainParams


class Report:
    """The main process shows and records; the others do nothing."""

    def __init__(self, params: TrainParams, clock: Clock, curves: Curves, trackers: Trackers, enabled: bool) -> None:
        self.params = params
        self.clock = clock
        self.curves = curves
        self.trackers = trackers
        self.enabled = enabled
        self.line = ProgressLine(params.max_steps, enabled)

    def step(self, done: int, loss: float, gradient_norm: Tensor, steps_since_start: int) -> None:
        """The state after `done` steps; `loss` in nats per token."""
        if not self.enabled:
            return
        seconds_per_step = self.clock.seconds / steps_since_start
        self.line.show(done, loss, self.clock.tokens_per_second, seconds_per_step)
        share = lr_multiplier(self.params.schedule, done - 1, self.params.max_steps)
        values = {
            "training_loss": loss,
            "gradient_norm": gradient_norm.item(),
            "learning_rate": self.params.optimizer.learning_rate * share,
        }
        self.curves.append(done, **values)
        self.trackers.log(done, values | self.clock.figures())

    def held_out(self, done: int, measured: ValidationResult) -> None:
        """An evaluation after `done` steps."""
        if not self.enabled:
            return
        values = {"validation_loss": measured.loss, "validation_bits_per_byte": measured.bits_per_byte}
        self.curves.append(done, **values)
        self.trackers.log(done, values)
