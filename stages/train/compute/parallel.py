"""How processes train one model: data parallelism (DDP) and gradient reduction.

Accelerate's launcher decides whether a model is data parallel or sharded (`fsdp.py`) and creates the process group, but
torch applies both: accelerate would silently replace FSDP by DDP without a GPU, and supports only one optimizer.
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
    """Wrap an unsharded model in torch's DDP if there are several processes.

    Buffers are sent only once, which accelerate does not support: they are constants, such as rotary frequencies.
    Gradients are views of the exchange's buckets, not copies.
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
    """Clip gradients to a global L2 norm and return the norm before."""
    return full_tensor(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm))


class AllReduce:
    """Accumulates gradients over micro-batches; DDP or FSDP reduces them.

    The order of the sums, and so their last bits, depend on the number of processes.
    """

    def __init__(self, model: nn.Module, accelerator: Accelerator) -> None:
        self.model = model
        self.accelerator = accelerator
        self.losses = torch.zeros(2, device=accelerator.device)
        self.scale = accelerator.num_processes
        """DDP and FSDP average gradients over processes; the loss is a sum over the global batch."""

    def micro_batch(self, is_last: bool) -> AbstractContextManager[None]:
        """Context of a micro-batch's forward and backward; `is_last`: it is this process's last of the step.

        Processes and replicas exchange gradients only in the last. A sharded model scatters its gradients in each,
        because those of all weights would not fit.
        """
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_all_reduce(is_last)
        if isinstance(self.model, DistributedDataParallel) and not is_last:
            return cast(AbstractContextManager[None], self.model.no_sync())
        return nullcontext()

    def collect(self, losses: Tensor) -> None:
        """Add a micro-batch's losses, after its backward pass."""
        self.losses += losses

    def finish(self, vote: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses of the global batch and the sum of the votes, in one exchange.

        The parameters' `grad` then holds the gradients of the global batch.
        """
        reduced = self.accelerator.reduce(torch.cat([self.losses, vote]), "sum")
        return reduced[:2], reduced[2]
