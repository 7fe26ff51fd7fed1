"""A training step."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from stages.formats.tokens import TokenStore
from stages.train.compute.data.batches import MicroBatch, ProcessShare, dropout_seed, micro_batches
from stages.train.compute.data.order import AnyOrder
from stages.train.compute.data.rows import Rows
from stages.train.compute.deterministic import DeterministicReduce
from stages.train.compute.model.loss import CausalLoss
from stages.train.compute.optim.build import Optimizers
from stages.train.compute.parallel import AllReduce, clip
from stages.train.compute.params import ComputingParams


@dataclass(frozen=True)
class StepResult:
    """The results of a step, on the device: `.item()` waits for the step to finish."""

    loss: Tensor
    """Cross-entropy over the global batch, in nats per token."""
    aux_loss: Tensor
    """The auxiliary loss of the routers, likewise, times its coefficient; 0 if the model has none."""
    gradient_norm: Tensor
    """Global L2 norm, before clipping."""
    stop_votes: Tensor
    """How many processes were asked to stop."""


@dataclass(frozen=True)
class Trainer:
    """Data, model and optimizers of a process, on its device."""

    params: ComputingParams
    """`precision` is resolved: never auto."""
    accelerator: Accelerator
    store: TokenStore
    order: AnyOrder
    raw_model: CausalLoss
    """Neither compiled nor wrapped; saved and exported."""
    model: nn.Module
    """`raw_model`, compiled and wrapped for the hardware."""
    optimizers: Optimizers
    micro_batch_size: int
    """Sequences per forward pass and process."""
    flops_per_token: int
    compiled: bool

    @property
    def step_tokens(self) -> int:
        """Targets in a global batch, by which the loss is divided."""
        return self.params.global_batch_size * self.params.sequence_length

    def micro_batches(self, steps: range) -> Iterator[MicroBatch]:
        """This process's micro-batches of some steps."""
        share = ProcessShare(self.accelerator.process_index, self.accelerator.num_processes, self.micro_batch_size)
        device = self.accelerator.device
        pin = {"pin": partial(pin_memory, device=device)} if device.type == "cuda" else {}
        return micro_batches(self.store, self.order, self.params, share, steps, **pin)

    def step(
        self, step: int, batches: Iterable[MicroBatch], asked_to_stop: Callable[[], bool] = lambda: False
    ) -> StepResult:
        """One optimizer step: forward and backward over this process's part of the global batch, clip, update.

        `asked_to_stop` is called after the backward passes; its votes are summed together with the losses.
        """
        reduction = self._reduction()
        head = self.raw_model.head_rows
        drawn = head and head.draw(step, self.accelerator.device)
        for batch in batches:
            torch.manual_seed(dropout_seed(self.params.seed, batch))
            with reduction.micro_batch(batch.is_last):
                # This micro-batch's part of the mean over the global batch.
                losses = self.model(*self._on_device(batch.rows), drawn=drawn) / self.step_tokens
                torch.autograd.backward(losses.sum() * reduction.scale)
            reduction.collect(losses.detach())
        # Filled on the device, because copying a value there would wait.
        vote = torch.full((1,), float(asked_to_stop()), device=self.accelerator.device)
        (loss, aux_loss), stop_votes = reduction.finish(vote)
        gradient_norm = clip(self.model, self.params.max_gradient_norm)
        self.optimizers.step(self.params.schedule.multiplier(step, self.params.max_steps))
        return StepResult(loss, aux_loss, gradient_norm, stop_votes)

    def _reduction(self) -> AllReduce | DeterministicReduce:
        fixed_order = self.params.deterministic_micro_batch_size is not None
        return (DeterministicReduce if fixed_order else AllReduce)(self.model, self.accelerator)

    def _on_device(self, rows: Rows) -> list[Tensor]:
        arrays = (rows.inputs, rows.targets, *([rows.positions] if self.raw_model.by_document else []))
        return [torch.from_numpy(array).to(self.accelerator.device, non_blocking=True) for array in arrays]


def pin_memory(rows: Rows, device: torch.device) -> Rows:
    """Copy rows to pinned memory. Sets the reading thread's GPU first, or it would take memory on the first one.

    In a single process accelerate's device has no index, and the thread's default, the first GPU, is right.
    """
    if device.index is not None:
        torch.cuda.set_device(device)
    arrays = (rows.inputs, rows.targets, rows.positions)
    return Rows(*(torch.from_numpy(array).pin_memory().numpy() for array in arrays))
