"""The training loop: what happens between steps.

The host queues work for the GPU and runs ahead of it. Each time the host waits for a result, the GPU idles until the
host has queued the next operations. Copies to the GPU wait too, unless they are from pinned memory.
"""

import math
import signal
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from types import FrameType

import torch
from torch import Tensor

from stages.runtime.errors import UserError, visible
from stages.runtime.supervision import look_for_stop, report_saving, stop_is_requested
from stages.train.checkpoint.checkpoints import Checkpoints
from stages.train.checkpoint.manifest import TrainingProgress
from stages.train.compute.parallel import norm
from stages.train.compute.processes import count
from stages.train.compute.step import Trainer
from stages.train.monitoring.report import Reporter
from stages.train.monitoring.throughput import profiled
from stages.train.monitoring.validation import Validation
from stages.train.origins import origins


class StopSignal:
    """After SIGTERM to this process or the command, as in a pre-emption, the current step is finished and saved.

    Before `listen`, SIGTERM ends the process: there is nothing to save, and it may be waiting for other processes.
    """

    def __init__(self) -> None:
        self._received = False
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # children inherit that the launcher ignores it

    def listen(self) -> None:
        """From now on, finish the current step after SIGTERM."""
        signal.signal(signal.SIGTERM, self._receive)
        look_for_stop()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received = True

    def is_set(self) -> bool:
        """True if the run should stop; then tells the launcher that the state is being saved."""
        if stopping := self._received or stop_is_requested():
            report_saving()
        return stopping


class TrainingStoppedError(Exception):
    """The run was asked to stop; `step`: the step of the checkpoint with its state, None if it was not saved."""

    def __init__(self, step: int | None) -> None:
        self.step = step


def train(
    trainer: Trainer,
    stop: StopSignal,
    validation: Validation,
    checkpoints: Checkpoints,
    reporter: Reporter,
    progress: TrainingProgress,
    segment: Sequence[int] = (),
) -> TrainingProgress:
    """Run the reporter's steps and return the progress. If `segment` names steps, only these are saved.

    Raises TrainingStoppedError after SIGTERM, UserError if a loss or a weight is NaN or infinite.
    """
    params, monitoring, steps = checkpoints.params, checkpoints.monitoring, reporter.steps
    throughput = reporter.throughput
    stop.listen()
    votes = HostCopy(torch.zeros(()))
    batches_by_step = groupby(throughput.timed(trainer.micro_batches(steps)), key=attrgetter("step"))
    for step, batches in profiled(batches_by_step, checkpoints.folder, trainer.accelerator):
        result = trainer.step(step, batches, stop.is_set)
        throughput.tokens += trainer.step_tokens
        if trainer.compiled and step == steps.start and len(steps) > 1:
            throughput.restart()
        done, last = step + 1, step + 1 == steps.stop
        if done % monitoring.log_every_steps == 0 or last:
            # `.item()` waits for the device, so losses are read only to be shown or saved.
            check_finite(trainer, step, "the loss", result.loss.item())
            aux_loss = result.aux_loss if trainer.raw_model.aux_loss else None
            reporter.step(done, result.loss.item(), result.gradient_norm, aux_loss)
        if done % monitoring.evaluate_every_steps == 0 or done == params.max_steps:
            with throughput.exclude("evaluation"):
                measured = validation.measure()
            reporter.validation(done, measured)
        # Read the previous step's votes: reading this step's would wait for the device.
        stopping, votes = votes.read() > 0, HostCopy(result.stop_votes)
        every = monitoring.checkpoint_every_steps, monitoring.milestone_every_steps or params.max_steps
        kept = any(done % steps == 0 for steps in every) or done in params.export_steps
        due = done in segment if segment else kept or last or stopping
        if due:
            check_finite(trainer, step, "the loss", result.loss.item())
            # The loss was computed before the update, which may have ruined the weights.
            check_finite(trainer, step, "the norm of the weights", norm(trainer.raw_model).item())
            progress = TrainingProgress(step=done, training_loss=result.loss.item())
            with throughput.exclude("checkpoint"):
                checkpoints.save(progress, trainer.raw_model, trainer.optimizers)
        if stopping and not last:
            # The state is saved only if every process could write its part.
            unsaved = count(trainer.accelerator, not checkpoints.finish())
            raise TrainingStoppedError(done if due and not unsaved else None)
    with throughput.exclude("checkpoint"):
        checkpoints.finish()
    return progress


def check_finite(trainer: Trainer, step: int, what: str, value: float) -> None:
    """Raise UserError, naming the batch's documents, if `value` is NaN or infinite."""
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


class HostCopy:
    """A copy of a scalar to the host. Reading it later does not wait for operations queued since."""

    def __init__(self, scalar: Tensor) -> None:
        on_gpu = scalar.device.type == "cuda"
        self._copy = torch.empty_like(scalar, device="cpu", pin_memory=on_gpu)
        self._copy.copy_(scalar, non_blocking=True)
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        if self._copied is not None:
            self._copied.record()

    def read(self) -> float:
        """The value at the time of the copy."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copy.item()
