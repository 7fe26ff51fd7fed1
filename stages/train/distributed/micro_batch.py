"""How many sequences go in a forward pass of a process: on GPUs as many as fit, by the memory that trials take.

The peak of a pass is at the start of its backward half: the activations of its sequences, and what does not depend on
their number (weights cast to bf16, gathered layers, workspaces, the logits of one part of the loss). Two trials of
different size tell one from the other. Their gradients exist before they begin, as where gradients are accumulated.
`PARROTFLOW_MICRO_BATCH` decides otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from accelerate import Accelerator

from stages.runtime.entry import UserError, whole_number
from stages.train.data.batches import batch_size
from stages.train.distributed.parallel import local_bytes
from stages.train.model.loss import CausalLoss
from stages.train.params import TrainParams

MICRO_BATCH = "PARROTFLOW_MICRO_BATCH"

CPU_TOKENS = 8192
"""More tokens at a time gain nothing on a CPU and cost memory."""

USABLE = 0.8
"""Of the memory that is left on a GPU: the rest is for what trials do not show (fragments, the compiler)."""

STATE = 3
"""What a process keeps of its weights' size besides them: gradients and AdamW's two moments. Muon has one, and DDP's
buckets are the gradients."""


def micro_batch_size(params: TrainParams, accelerator: Accelerator, model: CausalLoss) -> int:
    """Sequences of a forward pass in each process; at most its share of the largest batch. Every process calls this."""
    share: int = batch_size(params, params.max_steps - 1) // accelerator.num_processes
    if (given := given_micro_batch_size(params, accelerator.device.type, share)) is not None:
        return given
    trials = GpuTrials(model, params.sequence_length, accelerator.device)
    part = -(-model.rows_at_once(accelerator.device.type) // params.sequence_length)
    fitting = fitting_on_all(share, part, trials, agreement(accelerator))
    model.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    if not fitting:
        raise UserError(
            f"train: not even one sequence of {params.sequence_length} tokens fits on each of the "
            f"{accelerator.num_processes} devices; lower train.sequence_length, set train.gradient_checkpointing, or "
            "shard the model (FSDP)"
        )
    return balanced(share, fitting)


def given_micro_batch_size(params: TrainParams, device_type: str, share: int) -> int | None:
    """Sequences of a forward pass where no trial on the device decides; `share`: of a step, in each process."""
    if params.deterministic_micro_batch_size is not None:
        return params.deterministic_micro_batch_size
    if (given := whole_number(MICRO_BATCH, None)) is not None:
        return min(given, share)
    return None if device_type == "cuda" else min(share, max(1, CPU_TOKENS // params.sequence_length))


def balanced(share: int, fitting: int) -> int:
    """The size of equal micro-batches, as few as can be, of at most `fitting` sequences: 10 by at most 4 is 4, 3, 3."""
    micro_batches = -(-share // max(1, fitting))
    return -(-share // micro_batches)


class Trials(Protocol):
    """Forward and backward passes of a number of sequences, and the memory around them."""

    def peak(self, sequences: int) -> int | None:
        """The most bytes that a pass takes besides weights and gradients; None where it does not fit."""

    def room(self) -> int:
        """The bytes that passes can take while a step's gradients and the optimizers' state exist."""


def fitting_on_all(share: int, part: int, trials: Trials, least: Callable[[int], int]) -> int:
    """Sequences, up to about `share`, that fit into the memory of every process; 0 where not even one does.

    `part` is how many sequences the largest part of the loss holds. `least` is the smallest of all processes' values,
    so that all try the same: a sharded model's processes wait for each other in every layer, and one that is out of
    memory would leave the others waiting. So more than one sequence is tried only where it is known to fit: two take at
    most twice the memory of one, and more take no more for each than the second did. From `part` on they take less, as
    the logits do not grow any further: there it is measured again.
    """
    one = trials.peak(1)
    if not least(int(one is not None)) or one is None:
        return 0
    room = trials.room()
    if share == 1 or not least(int(2 * one <= room)):
        return 1

    def fitting(size: int, peak: int | None) -> int:
        larger = trials.peak(2 * size)
        return least(1 if peak is None or larger is None else sequences_that_fit(room, size, peak, larger))

    fits = fitting(1, one)
    if part > 1 and 2 * part <= fits < share:
        fits = max(fits, fitting(part, trials.peak(part)))
    return fits


def sequences_that_fit(room: int, size: int, smaller: int, larger: int) -> int:
    """How many sequences take at most `USABLE` of `room` bytes, from the peaks of `size` and of twice as many."""
    per_sequence = max(1, (larger - smaller) // size)
    constant = smaller - size * per_sequence
    return max(1, int((room - constant) * USABLE / per_sequence))


def agreement(accelerator: Accelerator) -> Callable[[int], int]:
    """The smallest of all processes' values; every process calls it."""

    def least(own: int) -> int:
        everywhere = accelerator.gather(torch.tensor([own], device=accelerator.device))
        return int(everywhere.min().item())

    return least


@dataclass(frozen=True)
class GpuTrials:
    """On this process's GPU. All processes of a sharded model try the same."""

    model: CausalLoss
    sequence_length: int
    device: torch.device

    def peak(self, sequences: int) -> int | None:
        """As `Trials.peak`. The first pass of all leaves gradients, which the others add to."""
        try:
            if not local_bytes(parameter.grad for parameter in self.model.parameters()):
                self._pass(1)
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            self._pass(sequences)
        except torch.OutOfMemoryError:
            return None
        return torch.cuda.max_memory_allocated(self.device) - before

    def _pass(self, sequences: int) -> None:
        ids = torch.zeros((sequences, self.sequence_length), dtype=torch.int64, device=self.device)
        torch.autograd.backward(self.model(ids, ids, ids).sum())

    def room(self) -> int:
        """As `Trials.room`, after the first pass."""
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        gradients = local_bytes(parameter.grad for parameter in self.model.parameters())
        return free + gradients - STATE * gradients
