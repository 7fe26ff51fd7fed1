"""The training loop: what happens between steps (`train`), and what happens in a step (`Trainer.step`).

The host queues work for the GPU and runs ahead of it. Where it waits for a result, the GPU has nothing to do from the
end of its queue until the host has queued the next operations. A copy to the GPU also waits, unless it is from pinned
memory, which the GPU reads by itself.
"""

import math
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from types import FrameType

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from stages.formats.tokens import TokenStore
from stages.runtime.errors import UserError, visible
from stages.runtime.supervision import look_for_stop, report_saving, stop_is_requested
from stages.train.checkpoint.checkpoints import Checkpoints
from stages.train.checkpoint.manifest import TrainingProgress
from stages.train.data.batches import MicroBatch, ProcessShare, Rows, dropout_seed, micro_batches
from stages.train.data.order import RowOrder, origins
from stages.train.model.loss import CausalLoss
from stages.train.monitoring.params import MonitoringParams
from stages.train.monitoring.report import Reporter, Validation, ValidationResult
from stages.train.monitoring.throughput import Throughput, profiled
from stages.train.optim.optimizers import Optimizers
from stages.train.parallel import clip, count, gradient_sum, norm
from stages.train.params import TrainParams


class StopSignal:
    """SIGTERM to this process or to the command: the current step is finished and saved first (pre-emption).

    Until `listen` SIGTERM ends the process: there is nothing to save, and it may be waiting for other processes.
    """

    def __init__(self) -> None:
        self._received = False
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the launcher ignores it, and children inherit that

    def listen(self) -> None:
        """Finish the current step on SIGTERM from now on."""
        signal.signal(signal.SIGTERM, self._receive)
        look_for_stop()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received = True

    @property
    def is_set(self) -> bool:
        """True if the run should stop."""
        return self._received or stop_is_requested()


@dataclass(frozen=True)
class StepResult:
    """The results of a step, on the device: reading a value (`.item()`) waits for the step to finish."""

    loss: Tensor
    """Cross-entropy over the global batch, in nats per token."""
    router_loss: Tensor
    """The auxiliary loss of the routers, likewise, with its coefficient; 0 if the model has none."""
    gradient_norm: Tensor
    """Global L2 norm, before clipping."""
    stop_votes: Tensor
    """How many processes were asked to stop."""


@dataclass(frozen=True)
class Setup:
    """Data, model and device of a process, before a checkpoint is loaded."""

    params: TrainParams
    """With the precision that the hardware means."""
    monitoring: MonitoringParams
    accelerator: Accelerator
    store: TokenStore
    order: RowOrder
    eager: CausalLoss
    """On the device; neither compiled nor wrapped: what is saved and exported."""
    optimizers: Optimizers
    micro_batch_size: int
    """Sequences of one forward pass in one process."""
    throughput: Throughput
    stop: StopSignal


@dataclass(frozen=True)
class Trainer(Setup):
    """A setup that can compute steps."""

    model: nn.Module
    """`eager`, compiled and wrapped as the hardware wants it."""
    compiled: bool

    @property
    def step_tokens(self) -> int:
        """Targets in a global batch, by which the loss is divided."""
        return self.params.global_batch_size * self.params.sequence_length

    def micro_batches(self, steps: range) -> Iterator[MicroBatch]:
        """This process's micro-batches of some steps."""
        share = ProcessShare(self.accelerator.process_index, self.accelerator.num_processes, self.micro_batch_size)
        device = self.accelerator.device
        place = {"place": partial(pin_memory, device=device)} if device.type == "cuda" else {}
        return self.throughput.timed(
            micro_batches(self.store, self.order.index, self.order.rows_of_step, self.params, share, steps, **place)
        )

    def step(self, step: int, batches: Iterable[MicroBatch]) -> StepResult:
        """One optimizer step: forward and backward over this process's part of the global batch, clip, update."""
        gradients = gradient_sum(self.params, self.model, self.accelerator)
        for batch in batches:
            torch.manual_seed(dropout_seed(self.params.seed, batch))
            gradients.add(partial(self.losses, batch), batch.is_last)
        if stopping := self.stop.is_set:
            report_saving()
        # Filled on the device: a value that is copied there would be waited for.
        asked_to_stop = torch.full((1,), float(stopping), device=self.accelerator.device)
        (loss, router_loss), stop_votes = gradients.finish(asked_to_stop)
        gradient_norm = clip(self.model, self.params.max_gradient_norm)
        self.optimizers.step(self.params.schedule.multiplier(step, self.params.max_steps))
        self.throughput.tokens += self.step_tokens
        return StepResult(loss, router_loss, gradient_norm, stop_votes)

    def losses(self, batch: MicroBatch) -> Tensor:
        """Both losses of `CausalLoss`, as this micro-batch's part of those of the global batch."""
        rows = batch.rows
        arrays = (rows.inputs, rows.targets, *([rows.positions] if self.eager.by_document else []))
        tensors = [torch.from_numpy(array).to(self.accelerator.device, non_blocking=True) for array in arrays]
        part: Tensor = self.model(*tensors) / self.step_tokens
        return part


class TrainingStoppedError(Exception):
    """The run was asked to stop; `saved` says whether its state is in a checkpoint."""

    def __init__(self, saved: bool) -> None:
        super().__init__()
        self.saved = saved


def train(
    trainer: Trainer,
    validation: Validation,
    checkpoints: Checkpoints,
    reporter: Reporter,
    progress: TrainingProgress,
    segment: Sequence[int] = (),
) -> tuple[TrainingProgress, ValidationResult | None]:
    """Run the steps of the reporter. If `segment` names steps, checkpoints are saved after these alone.

    Returns the progress and, if the last step was computed, the measurement after it.

    Raises StoppedError after SIGTERM, UserError if a loss or the weights are NaN.
    """
    params, monitoring, steps = trainer.params, trainer.monitoring, reporter.steps
    trainer.stop.listen()
    votes, measured = HostCopy(torch.zeros(())), None
    batches_by_step = groupby(trainer.micro_batches(steps), key=attrgetter("step"))
    for step, batches in profiled(batches_by_step, checkpoints.folder, trainer.accelerator):
        result = trainer.step(step, batches)
        if trainer.compiled and step == steps.start and len(steps) > 1:
            trainer.throughput.restart()
        done, last = step + 1, step + 1 == steps.stop
        if done % monitoring.log_every_steps == 0 or last:
            # `.item()` waits for the device: losses are read only where they are shown or saved.
            check_finite(trainer, step, "the loss", result.loss.item())
            routers = result.router_loss if trainer.eager.router_loss else None
            reporter.step(done, result.loss.item(), result.gradient_norm, routers)
        if done % monitoring.evaluate_every_steps == 0 or done == params.max_steps:
            with trainer.throughput.aside("evaluation"):
                measured = validation.measure()
            reporter.validation(done, measured)
        # The votes of the step before: those of this one would have to be waited for.
        stopping, votes = votes.read() > 0, HostCopy(result.stop_votes)
        every = monitoring.checkpoint_every_steps, monitoring.milestone_every_steps or params.max_steps
        kept = any(done % steps == 0 for steps in every) or done in params.export_steps
        due = done in segment if segment else kept or last or stopping
        if due:
            check_finite(trainer, step, "the loss", result.loss.item())
            # The loss was computed before the update: weights that the update ruined must not replace good ones.
            check_finite(trainer, step, "the norm of the weights", norm(trainer.eager).item())
            progress = TrainingProgress(step=done, training_loss=result.loss.item())
            with trainer.throughput.aside("checkpoint"):
                checkpoints.save(progress, trainer.eager, trainer.optimizers)
        if stopping and not last:
            # A checkpoint is one for all: what one process could not write is not saved.
            unsaved = count(trainer.accelerator, not checkpoints.finish())
            raise TrainingStoppedError(saved=due and not unsaved)
    with trainer.throughput.aside("checkpoint"):
        checkpoints.finish()
    return progress, measured


def check_finite(trainer: Trainer, step: int, what: str, value: float) -> None:
    """Raise UserError that names the batch's documents if a value of a step is NaN or infinite."""
    if math.isfinite(value):
        return
    rate = f"{trainer.params.optimizer.name}_learning_rate"
    raise UserError(
        f"train: {what} is {value} at step {step + 1}; its batch holds {documents(trainer, step)}. "
        f"The last checkpoint is kept. Lower train.optimizer.{rate} or raise train.schedule.warmup_steps"
    )


def documents(trainer: Trainer, step: int) -> str:
    """The first documents in the batch of `step` (from 0)."""
    spans = origins(trainer.store, trainer.order, step + 1)
    names = list(dict.fromkeys(visible(f"{span.source}:{span.path}") for span in spans))
    return ", ".join(names[:8]) + (" and others" if len(names) > 8 else "")


def pin_memory(rows: Rows, device: torch.device) -> Rows:
    """The same rows in pinned memory, for the thread that reads: it would take memory of the first GPU otherwise.

    In a single process accelerate's device has no index, and the thread's default, the first GPU, is right.
    """
    if device.index is not None:
        torch.cuda.set_device(device)
    arrays = (rows.inputs, rows.targets, rows.positions)
    return Rows(*(torch.from_numpy(array).pin_memory().numpy() for array in arrays))


class HostCopy:
    """A value on the host, to be read later: what was queued since does not have to be waited for."""

    def __init__(self, scalar: Tensor) -> None:
        on_gpu = scalar.device.type == "cuda"
        self._copy = torch.empty_like(scalar, device="cpu", pin_memory=on_gpu)
        self._copy.copy_(scalar, non_blocking=True)
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        if self._copied is not None:
            self._copied.record()

    def read(self) -> float:
        """The value, as it was when this was made."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copy.item()
