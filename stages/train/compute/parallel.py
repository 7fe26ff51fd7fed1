"""How processes train one model: data parallelism (DDP) and gradient reduction.

Accelerate's launcher says whether a model is data parallel or sharded (`fsdp.py`), and its process group carries it.
Both are applied by torch's own: accelerate would quietly use DDP for FSDP where there is no GPU, and takes one
optimizer only.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def wrap_ddp(model: nn.Module, accelerator: Accelerator) -> nn.Module:
    """Wrap a model that is not sharded for data parallel training, if there are several processes.

    By torch's own DDP: accelerate has no word for buffers that are sent once. They are constants here, such as rotary
    frequencies. The buckets of an exchange are the gradients, not copies of them.
    """
    if accelerator.num_processes == 1:
        return model
    devices = None if accelerator.device.type == "cpu" else [accelerator.device]
    return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True, forward_sync_buffers=False)


def full_tensor(tensor: Tensor) -> Tensor:
    """The full value of a tensor that may be sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def full_weights(model: nn.Module) -> dict[str, Any]:
    """All weights on the CPU of the main process; every process calls this."""
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def norm(model: nn.Module) -> Tensor:
    """The L2 norm of all weights."""
    return full_tensor(torch.nn.utils.get_total_norm(model.parameters()))


def clip(model: nn.Module, max_norm: float) -> Tensor:
    """Scale gradients down to a global L2 norm and return the norm that they had."""
    return full_tensor(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm))


class AllReduce:
    """Accumulate gradients over micro-batches and let DDP or FSDP reduce them.

    The order, and so the last bits, depend on the number of processes.
    """

    def __init__(self, model: nn.Module, accelerator: Accelerator) -> None:
        self.model = model
        self.accelerator = accelerator
        self.losses = torch.zeros(2, device=accelerator.device)
        self.scale = accelerator.num_processes
        """DDP and FSDP average gradients over processes; the loss is a sum over the global batch."""

    def micro_batch(self, is_last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch; `is_last`: of this process's ones.

        Processes exchange gradients in the last alone. A sharded model's are scattered in each: whole gradients of
        all weights would not fit. Replicas exchange theirs in the last.
        """
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_all_reduce(is_last)
        if isinstance(self.model, DistributedDataParallel) and not is_last:
            return cast(AbstractContextManager[None], self.model.no_sync())
        return nullcontext()

    def collect(self, losses: Tensor) -> None:
        """Take a micro-batch's losses, after its backward pass."""
        self.losses += losses

    def finish(self, vote: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses of the global batch and the sum of the votes: one exchange serves both.

        The gradients of the global batch are then in the parameters' `grad`.
        """
        reduced = self.accelerator.reduce(torch.cat([self.losses, vote]), "sum")
        return reduced[:2], reduced[2]
