"""How many sequences one forward pass takes: by the parameters, by `PARROTFLOW_MICRO_BATCH`, or found by trying."""

import os

import torch
from accelerate import Accelerator

from stages.runtime.entry import UserError
from stages.train.model.loss import CausalLoss
from stages.train.params import TrainParams

VARIABLE = "PARROTFLOW_MICRO_BATCH"

CPU_TOKENS = 8192
"""More tokens at a time gain nothing on a CPU and cost memory for the logits."""


def micro_batch_size(params: TrainParams, accelerator: Accelerator, model: CausalLoss) -> int:
    """Sequences of a forward pass in each process; at most its share of the global batch."""
    share: int = params.global_batch_size // accelerator.num_processes
    if params.deterministic_micro_batch_size is not None:
        return params.deterministic_micro_batch_size
    if given := os.environ.get(VARIABLE):
        if not given.isdecimal() or int(given) < 1:
            raise UserError(f"{VARIABLE}={given}: expected a number of sequences, 1 or more")
        return min(int(given), share)
    if accelerator.device.type == "cpu":
        return min(share, max(1, CPU_TOKENS // params.sequence_length))
    return _largest_that_fits(share, params.sequence_length, accelerator, model)


def _largest_that_fits(share: int, sequence_length: int, accelerator: Accelerator, model: CausalLoss) -> int:
    """Halve until a forward and a backward pass fit on every process's device. Every process calls this."""
    size = share
    while True:
        fits = torch.tensor(float(_fits(size, sequence_length, accelerator.device, model)), device=accelerator.device)
        if accelerator.reduce(fits, "sum").item() == accelerator.num_processes:
            return size
        if size == 1:
            raise UserError(
                f"train: not even one sequence of {sequence_length} tokens fits on {accelerator.device}; "
                "lower train.sequence_length, set train.gradient_checkpointing, or shard the model (FSDP)"
            )
        size = (size + 1) // 2


def _fits(size: int, sequence_length: int, device: torch.device, model: CausalLoss) -> bool:
    ids = torch.zeros((size, sequence_length), dtype=torch.int64, device=device)
    try:
        model(ids, ids, ids).backward()
    except torch.OutOfMemoryError:
        return False
    finally:
        model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
    return True
