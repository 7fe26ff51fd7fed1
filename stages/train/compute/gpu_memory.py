"""Finds by trial how many sequences of a forward pass fit on GPUs.

The memory of a pass peaks at the start of the backward half: the activations of its sequences, and a part that does not
depend on their number (weights cast to bf16, gathered layers, workspaces, the logits of one part of the loss). Two
trials separate the two.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.distributed.tensor import DTensor

from stages.runtime.errors import UserError
from stages.train.compute.fsdp import uses_fsdp
from stages.train.compute.model.loss import CausalLoss
from stages.train.compute.params import ComputingParams

USABLE = 0.8
"""Usable share of a GPU's free memory; the rest is for fragmentation and the compiler, which trials do not show."""

STATE = 3
"""Memory besides the weights, in multiples of their size: gradients and AdamW's two moments (Muon has one). DDP's
buckets add one."""


def fitting_micro_batch_size(params: ComputingParams, accelerator: Accelerator, model: CausalLoss, share: int) -> int:
    """Sequences per forward pass, found by trial; at most `share`, a process's part of a step.

    Every process calls this. Raises UserError if not even one sequence fits.
    """
    state = STATE + has_buckets(params, accelerator.num_processes, uses_fsdp())
    trials = GpuTrials(model, params.sequence_length, accelerator.device, state)
    part = -(-model.rows_at_once(accelerator.device.type) // params.sequence_length)

    def least(own: int) -> int:
        return int(accelerator.gather(torch.tensor([own], device=accelerator.device)).min().item())

    fitting = fitting_on_all(share, part, trials, least)
    model.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    if not fitting:
        raise UserError(
            f"train: not even one sequence of {params.sequence_length} tokens fits on each of the "
            f"{accelerator.num_processes} devices; lower train.sequence_length, set train.gradient_checkpointing, or "
            "shard the model (FSDP)"
        )
    return balanced(share, fitting)


def has_buckets(params: ComputingParams, processes: int, sharded: bool) -> bool:
    """True if processes exchange their gradients in DDP's buckets.

    Gradients become views of the buckets only in the exchange. Before it, the sums of a step's micro-batches take extra
    memory (torch/nn/parallel/distributed.py, "the bucket view alias is destroyed every iteration").
    """
    return processes > 1 and not sharded and params.deterministic_micro_batch_size is None


def balanced(share: int, fitting: int) -> int:
    """The size of the fewest micro-batches of at most `fitting` sequences, as equal as possible: 10 by 4 is 4, 3, 3."""
    micro_batches = -(-share // max(1, fitting))
    return -(-share // micro_batches)


def fitting_on_all(share: int, part: int, trials: "GpuTrials", least: Callable[[int], int]) -> int:
    """Sequences, up to about `share`, that fit into the memory of every process; 0 if not even one does.

    `part`: sequences in the largest part of the loss. `least`: the minimum over all processes, so that all try the
    same. In a sharded model, a process that runs out of memory would leave the others waiting in a layer, so only sizes
    known to fit are tried: two sequences take at most twice the memory of one, and each further one at most as much as
    the second. From `part` sequences on, the logits stop growing, so the memory per sequence is measured again.
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
    """How many sequences take at most `USABLE` of `room` bytes, given the peaks of `size` and of twice as many."""
    per_sequence = max(1, (larger - smaller) // size)
    constant = smaller - size * per_sequence
    return max(1, int((room - constant) * USABLE / per_sequence))


@dataclass(frozen=True)
class GpuTrials:
    """Trial passes on this process's GPU, and its free memory."""

    model: CausalLoss
    sequence_length: int
    device: torch.device
    state: int
    """As `STATE`."""

    def peak(self, sequences: int) -> int | None:
        """The peak bytes of a pass besides weights and gradients; None if it does not fit.

        The first call runs one more pass before, which allocates the gradients.
        """
        try:
            if not local_bytes(parameter.grad for parameter in self.model.parameters()):
                self._pass(1)
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            self._pass(sequences)
        except torch.OutOfMemoryError:
            if uses_fsdp():
                raise  # the others may be waiting for this process in a layer and cannot vote
            return None
        return torch.cuda.max_memory_allocated(self.device) - before

    def _pass(self, sequences: int) -> None:
        ids = torch.zeros((sequences, self.sequence_length), dtype=torch.int64, device=self.device)
        drawn = self.model.head_rows and self.model.head_rows.draw(0, self.device)
        torch.autograd.backward(self.model(ids, ids, ids, drawn).sum())

    def room(self) -> int:
        """The bytes left for a pass beside a step's gradients and the optimizers' state."""
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        gradients = local_bytes(parameter.grad for parameter in self.model.parameters())
        return free + gradients - self.state * gradients


def local_bytes(tensors: Iterable[Tensor | None]) -> int:
    """The bytes that this process holds of some tensors, which may be sharded."""
    own = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors if tensor is not None)
    return sum(tensor.nbytes for tensor in own)
