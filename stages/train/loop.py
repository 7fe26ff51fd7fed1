"""The training loop: what happens in a step, and what happens between steps."""

import math
import signal
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import FrameType

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from stages.formats.entry import UserError
from stages.formats.tokens import TokenStore
from stages.train.batches import read_rows, rows_of_step
from stages.train.checkpoints import Checkpoints, Progress
from stages.train.curves import Curves
from stages.train.evaluation import Evaluation
from stages.train.loss import CausalLoss
from stages.train.optimizer import Optimizers
from stages.train.packing import Integers, PackingIndex
from stages.train.params import TrainParams
from stages.train.progress import ProgressLine
from stages.train.schedule import rate_share
from stages.train.speed import Clock


class StopSignal:
    """Set by SIGTERM, so that the step at hand is finished and saved first (pre-emption)."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


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
    clock: Clock = field(default_factory=Clock)

    def step(self, step: int) -> tuple[Tensor, Tensor]:
        """One optimizer step. Returns the loss (nats per token over the global batch) and the gradient's L2 norm."""
        rows = rows_of_step(self.params.seed, step, self.params.global_batch_size, self.index.rows)
        target_count = self.index.target_count(rows)
        share = len(rows) // self.accelerator.num_processes
        own = rows[self.accelerator.process_index * share : (self.accelerator.process_index + 1) * share]
        loss = torch.zeros((), device=self.accelerator.device)
        for first in range(0, len(own), self.micro_batch_size):
            last = first + self.micro_batch_size >= len(own)
            loss += self._accumulate(step, first, own[first : first + self.micro_batch_size], target_count, last)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.params.max_gradient_norm)
        self.optimizers.step(rate_share(self.params.schedule, step, self.params.max_steps))
        self.clock.tokens += target_count
        return self.accelerator.reduce(loss, "sum"), norm

    def _accumulate(self, step: int, first: int, rows: Integers, target_count: int, last: bool) -> Tensor:
        began = time.perf_counter()
        batch = read_rows(self.store, self.index, rows, self.params.sequence_length)
        inputs = torch.from_numpy(batch.inputs).to(self.accelerator.device)
        targets = torch.from_numpy(batch.targets).to(self.accelerator.device)
        self.clock.data_seconds += time.perf_counter() - began
        # Dropout hangs on (seed, step, place in the global batch), not on the process or on what ran before.
        place = self.accelerator.process_index * (self.params.global_batch_size // self.accelerator.num_processes)
        torch.manual_seed(hash((self.params.seed, step, place + first)))
        with nullcontext() if last else self.accelerator.no_sync(self.model):
            loss = self.model(inputs, targets) / target_count
            # DDP takes the mean over processes; the loss is a sum over the global batch.
            (loss * self.accelerator.num_processes).backward()
        return loss.detach()


class Preempted(Exception):
    """SIGTERM came; the state is saved."""


def train(
    trainer: Trainer, evaluation: Evaluation, checkpoints: Checkpoints, curves: Curves, progress: Progress
) -> Progress:
    """Run the steps that remain. Raises Preempted after saving on SIGTERM, UserError where the loss is no number."""
    params, main = trainer.params, trainer.accelerator.is_main_process
    stop = StopSignal()
    line = ProgressLine(params.max_steps, main)
    first = progress.step
    for step in range(first, params.max_steps):
        loss, norm = trainer.step(step)
        done = step + 1
        last = done == params.max_steps
        if done % params.log_every_steps == 0 or last:
            progress = Progress(done, loss.item())
            check_finite(trainer, step, progress.training_loss)
            seconds_per_step = trainer.clock.seconds / (done - first)
            line.show(done, progress.training_loss, trainer.clock.tokens_per_second, seconds_per_step)
            if main:
                rate = params.optimizer.learning_rate * rate_share(params.schedule, step, params.max_steps)
                curves.append(done, training_loss=loss.item(), gradient_norm=norm.item(), learning_rate=rate)
        if done % params.evaluate_every_steps == 0 or last:
            with trainer.clock.evaluation():
                held_out = evaluation.measure()
            if main:
                values = {"validation_loss": held_out.loss, "validation_bits_per_byte": held_out.bits_per_byte}
                curves.append(done, **values)
        stopping = trainer.accelerator.num_processes == 1 and stop.asked
        if done % params.checkpoint_every_steps == 0 or last or stopping:
            progress = Progress(done, loss.item())
            with trainer.clock.checkpoint():
                checkpoints.save(progress, trainer.eager, trainer.optimizers)
        if stopping:
            raise Preempted
    return progress


def check_finite(trainer: Trainer, step: int, loss: float) -> None:
    """Raise UserError that names the batch's documents where the loss is NaN or infinite."""
    if math.isfinite(loss):
        return
    rows = rows_of_step(trainer.params.seed, step, trainer.params.global_batch_size, trainer.index.rows)
    starts = [segment.start for row in rows for segment in trainer.index.segments(int(row))]
    numbers = sorted({trainer.store.document_at(start) for start in starts})
    names = [f"{info['source']}:{info['path']}" for info in map(trainer.store.document_info, numbers[:8])]
    raise UserError(
        f"train: the loss is {loss} at step {step + 1}; its batch holds {', '.join(names)}"
        f"{' and others' if len(numbers) > len(names) else ''}. The last checkpoint is kept. "
        "Lower train.optimizer.learning_rate or raise train.schedule.warmup_steps"
    )
