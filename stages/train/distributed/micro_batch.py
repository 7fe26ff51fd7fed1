"""How many sequences one forward pass takes: by the parameters, by `PARROTFLOW_MICRO_BATCH`, or by the memory."""

import torch
from accelerate import Accelerator

from stages.runtime.entry import UserError, whole_number
from stages.train.data.batches import batch_size
from stages.train.distributed.agreement import count
from stages.train.model.loss import CausalLoss
from stages.train.params import TrainParams

VARIABLE = "PARROTFLOW_MICRO_BATCH"

CPU_TOKENS = 8192
"""More tokens at a time gain nothing on a CPU and cost memory."""

USABLE = 0.8
"""Of the memory that is left on a GPU: the rest is for what one trial does not show (fragments, the compiler)."""


def micro_batch_size(params: TrainParams, accelerator: Accelerator, model: CausalLoss) -> int:
    """Sequences of a forward pass in each process; at most its share of the largest batch. Every process calls this."""
    share: int = batch_size(params, params.max_steps - 1) // accelerator.num_processes
    if params.deterministic_micro_batch_size is not None:
        return params.deterministic_micro_batch_size
    if (given := whole_number(VARIABLE, None)) is not None:
        return min(given, share)
    if accelerator.device.type != "cuda":
        return min(share, max(1, CPU_TOKENS // params.sequence_length))
    return balanced(share, _fitting_on_all(params.sequence_length, accelerator, model))


def balanced(share: int, fitting: int) -> int:
    """The size of equal micro-batches, as few as can be, of at most `fitting` sequences: 10 by at most 4 is 4, 3, 3."""
    micro_batches = -(-share // max(1, fitting))
    return -(-share // micro_batches)


def sequences_that_fit(free: int, state: int, per_sequence: int) -> int:
    """How many sequences fit into `free` bytes, besides a `state` that is allocated later; 1 at least."""
    return max(1, int((free - state) * USABLE / max(1, per_sequence)))


def _fitting_on_all(sequence_length: int, accelerator: Accelerator, model: CausalLoss) -> int:
    """The least over the processes of what fits, from the memory that one sequence takes.

    One trial of the smallest size: a search by larger ones would leave some processes out of memory in the middle of a
    sharded model's collectives, and the others waiting for them.
    """
    device = accelerator.device
    own = _fitting(sequence_length, device, model)
    if failed := accelerator.num_processes - count(accelerator, own > 0):
        raise UserError(
            f"train: not even one sequence of {sequence_length} tokens fits on {failed} of {accelerator.num_processes} "
            "devices; lower train.sequence_length, set train.gradient_checkpointing, or shard the model (FSDP)"
        )
    everywhere = accelerator.gather(torch.tensor([own], device=device))
    return int(everywhere.min().item())


def _fitting(sequence_length: int, device: torch.device, model: CausalLoss) -> int:
    """Sequences that fit on this process's GPU; 0 where one does not."""
    ids = torch.zeros((1, sequence_length), dtype=torch.int64, device=device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        model(ids, ids, ids).sum().backward()
    except torch.OutOfMemoryError:
        return 0
    gradients = sum(p.grad.numel() * p.grad.element_size() for p in model.parameters() if p.grad is not None)
    per_sequence = torch.cuda.max_memory_allocated(device) - before - gradients
    model.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    # Not there yet: the gradients, AdamW's two moments (Muon has one), and DDP's buckets or FSDP's gathered blocks.
    return sequences_that_fit(free, 4 * gradients, per_sequence)
