"""The training loop: what happens between steps.

The host queues work for the GPU and runs ahead of it. Where it waits for a result, the GPU has nothing to do from the
end of its queue until the host has queued the next operations. A copy to the GPU also waits, unless it is from pinned
memory, which the GPU reads by itself.
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

    def is_set(self) -> bool:
        """True if the run should stop; the launcher then hears that the state is being saved."""
        if stopping := self._received or stop_is_requested():
            report_saving()
        return stopping


class TrainingStoppedError(Exception):
    """The run was asked to stop; `saved` says whether its state is in a checkpoint."""

    def __init__(self, saved: bool) -> None:
        super().__init__()
        self.saved = saved


def train(
    trainer: Trainer,
    stop: StopSignal,
    validation: Validation,
    checkpoints: Checkpoints,
    reporter: Reporter,
    progress: TrainingProgress,
    segment: Sequence[int] = (),
) -> TrainingProgress:
    """Run the steps of the reporter. If `segment` names steps, checkpoints are saved after these alone.

    Returns the progress.

    Raises TrainingStoppedError after SIGTERM, UserError if a loss or the weights are NaN.
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
            # `.item()` waits for the device: losses are read only where they are shown or saved.
            check_finite(trainer, step, "the loss", result.loss.item())
            aux_loss = result.aux_loss if trainer.raw_model.aux_loss else None
            reporter.step(done, result.loss.item(), result.gradient_norm, aux_loss)
        if done % monitoring.evaluate_every_steps == 0 or done == params.max_steps:
            with throughput.exclude("evaluation"):
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
            check_finite(trainer, step, "the norm of the weights", norm(trainer.raw_model).item())
            progress = TrainingProgress(step=done, training_loss=result.loss.item())
            with throughput.exclude("checkpoint"):
                checkpoints.save(progress, trainer.raw_model, trainer.optimizers)
        if stopping and not last:
            # A checkpoint is one for all: what one process could not write is not saved.
            unsaved = count(trainer.accelerator, not checkpoints.finish())
            raise TrainingStoppedError(saved=due and not unsaved)
    with throughput.exclude("checkpoint"):
        checkpoints.finish()
    return progress


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
