"""The training loop: what happens in a step, and what happens between steps."""

import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from stages.formats.tokens import TokenStore
from stages.runtime.entry import UserError
from stages.train.checkpoint.checkpoints import Checkpoints, Progress
from stages.train.data.batches import Batch, read_ahead, rows_of_step
from stages.train.data.packing import Integers, PackingIndex
from stages.train.distributed.deterministic import TreeSum, sum_over_processes
from stages.train.distributed.parallel import clip, gradient_traffic, norm
from stages.train.model.export import export_step
from stages.train.model.loss import CausalLoss
from stages.train.monitoring.report import Report
from stages.train.monitoring.throughput import Clock
from stages.train.monitoring.validation import Evaluation
from stages.train.optim.optimizer import Optimizers
from stages.train.optim.schedule import lr_multiplier
from stages.train.params import TrainParams


class StopSignal:
    """Set by SIGTERM, so that the step at hand is finished and saved first (pre-emption)."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


@dataclass(frozen=True)
class StepResult:
    """What a step leaves, on the device; reading a value waits for the step."""

    loss: Tensor
    """Nats per token over the global batch."""
    gradient_norm: Tensor
    """Global L2 norm, before clipping."""
    stop_votes: Tensor
    """How many processes were asked to stop."""


@dataclass
class Trainer:
    """Everything that a step needs."""

    params: TrainParams
    accelerator: Accelerator
    store: TokenStore
    index: PackingIndex
    model: nn.Module
    """`CausalLoss`, compiled and wrapped as the hardware wants it."""
    eager: CausalLoss
    """The same weights, neither compiled nor wrapped: what is saved and exported."""
    optimizers: Optimizers
    micro_batch_size: int
    """Sequences of one forward pass in one process."""
    stop: StopSignal
    clock: Clock

    def own_rows(self, step: int) -> tuple[int, list[Integers]]:
        """The place of this process's first row in the global batch of `step`, and its rows by micro-batch."""
        share = self.params.global_batch_size // self.accelerator.num_processes
        first = self.accelerator.process_index * share
        rows = rows_of_step(self.params.seed, step, self.params.global_batch_size, self.index.rows)
        stops = range(first, first + share, self.micro_batch_size)
        return first, [rows[start : min(start + self.micro_batch_size, first + share)] for start in stops]

    def batches(self, first_step: int) -> Iterator[Batch]:
        """The micro-batches of this process from `first_step` on, read ahead."""
        steps = range(first_step, self.params.max_steps)
        wanted = (rows for step in steps for rows in self.own_rows(step)[1])
        return read_ahead(self.store, self.index, wanted, self.params.sequence_length)

    def step(self, step: int, batches: Iterator[Batch]) -> StepResult:
        """One optimizer step on this process's next micro-batches."""
        rows = rows_of_step(self.params.seed, step, self.params.global_batch_size, self.index.rows)
        target_count = self.index.target_count(rows)
        if self.params.deterministic_micro_batch_size is None:
            loss = self._sum_gradients(step, batches, target_count)
        else:
            loss = self._sum_gradients_exactly(step, batches, target_count)
        asked = torch.tensor(float(self.stop.asked), device=loss.device)
        totals = self.accelerator.reduce(torch.stack([loss, asked]), "sum")
        norm = clip(self.model, self.params.max_gradient_norm)
        self.optimizers.step(lr_multiplier(self.params.schedule, step, self.params.max_steps))
        self.clock.tokens += target_count
        exact = self.params.deterministic_micro_batch_size is not None
        return StepResult(loss if exact else totals[0], norm, totals[1])

    def _sum_gradients(self, step: int, batches: Iterator[Batch], target_count: int) -> Tensor:
        """Leave the global gradient in `.grad`; return this process's part of the loss."""
        place, own = self.own_rows(step)
        loss = torch.zeros((), device=self.accelerator.device)
        for number in range(len(own)):
            with gradient_traffic(self.model, wanted=number == len(own) - 1):
                part = self._loss(step, place, next_timed(batches, self.clock)) / target_count
                # DDP and FSDP take the mean over processes; the loss is a sum over the global batch.
                torch.autograd.backward(part * self.accelerator.num_processes)
            loss += part.detach()
            place += len(own[number])
        return loss

    def _sum_gradients_exactly(self, step: int, batches: Iterator[Batch], target_count: int) -> Tensor:
        """The same by a tree (stages.train.distributed.deterministic); returns the loss of the global batch."""
        place, own = self.own_rows(step)
        trained = [parameter for parameter in self.eager.parameters() if parameter.requires_grad]
        tree = TreeSum()
        for rows in own:
            part = self._loss(step, place, next_timed(batches, self.clock)) / target_count
            torch.autograd.backward(part)
            tree.add([*(cast(Tensor, parameter.grad) for parameter in trained), part.detach()])
            self.eager.zero_grad(set_to_none=True)
            place += len(rows)
        *gradients, loss = sum_over_processes(tree.result())
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.grad = gradient
        return loss

    def _loss(self, step: int, place: int, batch: Batch) -> Tensor:
        inputs = torch.from_numpy(batch.inputs).to(self.accelerator.device, non_blocking=True)
        targets = torch.from_numpy(batch.targets).to(self.accelerator.device, non_blocking=True)
        positions = torch.from_numpy(batch.positions).to(self.accelerator.device, non_blocking=True)
        # Dropout hangs on (seed, step, place in the global batch), not on the process or on what ran before.
        torch.manual_seed(hash((self.params.seed, step, place)))
        loss: Tensor = self.model(inputs, targets, positions)
        return loss


def next_timed(batches: Iterator[Batch], clock: Clock) -> Batch:
    """The next micro-batch; the time waited for it goes to the clock."""
    began = time.perf_counter()
    batch = next(batches)
    clock.data_seconds += time.perf_counter() - began
    return batch


class PreemptedError(Exception):
    """SIGTERM came; the state is saved."""


def train(
    trainer: Trainer, evaluation: Evaluation, checkpoints: Checkpoints, report: Report, progress: Progress
) -> Progress:
    """Run the steps that remain. Raises PreemptedError after saving on SIGTERM, UserError where a loss is NaN."""
    params, first = trainer.params, progress.step
    batches = trainer.batches(first)
    votes = torch.zeros(())
    for step in range(first, params.max_steps):
        result = trainer.step(step, batches)
        done, last = step + 1, step + 1 == params.max_steps
        if done % params.log_every_steps == 0 or last:
            check_finite(trainer, step, "the loss", result.loss.item())
            report.step(done, result.loss.item(), result.gradient_norm, done - first)
        if done % params.evaluate_every_steps == 0 or last:
            with trainer.clock.evaluation():
                report.held_out(done, evaluation.measure())
        # Of the step before: reading this one's would wait for it.
        stopping, votes = votes.item() > 0, result.stop_votes
        if done % params.checkpoint_every_steps == 0 or last or stopping:
            check_finite(trainer, step, "the loss", result.loss.item())
            # The loss is of the weights before the step: what it made of them must not take a good checkpoint's place.
            check_finite(trainer, step, "the norm of the weights", norm(trainer.eager).item())
            progress = Progress(done, result.loss.item(), params.max_steps)
            with trainer.clock.checkpoint():
                checkpoints.save(progress, trainer.eager, trainer.optimizers)
        if done in params.export_steps:
            place = checkpoints.export_place(done)
            export_step(trainer.eager, trainer.accelerator, params, trainer.store.manifest, place)
        if stopping and not last:
            checkpoints.wait()
            raise PreemptedError
    with trainer.clock.checkpoint():
        checkpoints.wait()
    return progress


def check_finite(trainer: Trainer, step: int, what: str, value: float) -> None:
    """Raise UserError that names the batch's documents where a value of a step is NaN or infinite."""
    if math.isfinite(value):
        return
    rows = rows_of_step(trainer.params.seed, step, trainer.params.global_batch_size, trainer.index.rows)
    starts = [segment.start for row in rows for segment in trainer.index.segments(int(row))]
    numbers = sorted({trainer.store.document_at(start) for start in starts})
    names = [f"{info['source']}:{info['path']}" for info in map(trainer.store.document_info, numbers[:8])]
    raise UserError(
        f"train: {what} is {value} at step {step + 1}; its batch holds {', '.join(names)}"
        f"{' and others' if len(numbers) > len(names) else ''}. The last checkpoint is kept. "
        "Lower train.optimizer.learning_rate or raise train.schedule.warmup_steps"
    )
