"""Reports a run while it goes: the curves, the trackers, the progress line."""

from torch import Tensor

from stages.train.data.batches import rows_before
from stages.train.monitoring.curves import Curves
from stages.train.monitoring.progress import ProgressLine
from stages.train.monitoring.throughput import Throughput
from stages.train.monitoring.trackers import Trackers
from stages.train.optim.schedule import lr_multiplier
from stages.train.params import TrainParams
from stages.train.validation import ValidationResult


class Report:
    """The main process shows and records; the others do nothing."""

    def __init__(
        self, params: TrainParams, throughput: Throughput, curves: Curves, trackers: Trackers, enabled: bool
    ) -> None:
        self.params = params
        self.throughput = throughput
        self.curves = curves
        self.trackers = trackers
        self.enabled = enabled
        self.line = ProgressLine(params.max_steps, enabled)

    def step(self, done: int, loss: float, gradient_norm: Tensor, router_loss: Tensor | None, first_step: int) -> None:
        """The state after `done` steps; this start did those from `first_step` on. Losses in nats per token."""
        if not self.enabled:
            return
        left = seconds_left(self.params, first_step, done, self.params.max_steps, self.throughput.seconds)
        self.line.show(done, loss, self.throughput.tokens_per_second, left)
        multiplier = lr_multiplier(self.params.schedule, done - 1, self.params.max_steps)
        rates = {name: peak * multiplier for name, peak in peak_learning_rates(self.params).items()}
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


def seconds_left(params: TrainParams, first_step: int, done: int, last: int, seconds: float) -> float:
    """The time until `last` steps are done, where the steps from `first_step` to `done` took `seconds`.

    It is counted in rows: steps take longer where the batch has grown.
    """
    first, now, end = (rows_before(params, step) for step in (first_step, done, last))
    return seconds * (end - now) / (now - first)


def peak_learning_rates(params: TrainParams) -> dict[str, float]:
    """The peak rate of each optimizer, in the order of the columns of the curve; 0 for one that is not used."""
    muon = params.optimizer.muon_learning_rate if params.optimizer.name == "muon" else 0.0
    return {"adamw": params.optimizer.adamw_learning_rate, "muon": muon}
