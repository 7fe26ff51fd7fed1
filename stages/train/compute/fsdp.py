"""Sharded training (FSDP2), optionally with replicas of the shards (HSDP).

A sharded model computes in bf16 by gathering its weights in bf16. Autocast would gather twice the bytes, and keep a
bf16 copy of each weight until the backward pass. Activations between layers are therefore bf16 too. Gradients are
summed in fp32, and the shards of weights and optimizer state stay in fp32.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from stages.train.compute.model.build import set_trainable
from stages.train.compute.model.loss import CausalLoss
from stages.train.compute.params import ComputingParams
from stages.train.compute.processes import PROCESS_GROUP, on_main


def uses_fsdp() -> bool:
    """True if the launcher's configuration asks for FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def build_on_main(build: Callable[[], CausalLoss], params: ComputingParams, accelerator: Accelerator) -> CausalLoss:
    """Build the model on the CPU; only the main process's has values, until `apply_fsdp` sends them.

    If every process had values, the host would hold a copy of all fp32 weights for each. The others allocate memory and
    never write it, which takes none of the machine's. On torch's meta device a model would lose its weight tying and
    the buffers that it computes from its config (rotary frequencies).

    Every process calls this, and raises the UserError of the main process's `build`.
    """
    built: list[CausalLoss] = []

    def with_values() -> tuple[PreTrainedConfig, bool]:
        built.append(build())
        return built[0].model.config, built[0].plain_head

    config, plain_head = on_main(accelerator, with_values)
    if built:
        return built[0]
    with no_init_weights():  # leave the memory unwritten
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    model.tie_weights()
    set_trainable(model, params)
    return CausalLoss(model, params, plain_head)


def apply_fsdp(model: CausalLoss, accelerator: Accelerator) -> None:
    """Shard a model of `build_on_main` in place, and send each shard its values. Every process calls this.

    `fully_shard` moves one block at a time to the device, then the rest, so the whole model need not fit there.
    """
    whole: dict[str, Tensor] = model.state_dict() if accelerator.is_main_process else {}
    mesh, in_bf16 = _mesh(accelerator), model.dtype == torch.bfloat16
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if in_bf16 else MixedPrecisionPolicy()
    for module in (*blocks(model), model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    model.autocast = False
    if accelerator.num_processes == 1:
        return
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, dict[str, Any](whole), options=options)
    for buffer in model.buffers():  # including non-persistent ones
        dist.broadcast(buffer, 0)


def compile_blocks(model: CausalLoss, options: dict[str, Any]) -> None:
    """Compile each block's `forward` separately, because FSDP's hooks would break the graph of the whole model.

    Equal layers share the compiled code, and all layers share torch's limit of recompilations.
    """
    found = list(blocks(model))
    torch._dynamo.config.recompile_limit *= max(1, len(found))
    for block in found:
        block.forward = torch.compile(block.forward, dynamic=False, options=options)


def blocks(model: CausalLoss) -> Iterator[nn.Module]:
    """The transformer's layers: modules of the classes in transformers' `_no_split_modules`.

    A model without such classes is sharded as a whole. A module that only some processes use in a step, such as one
    expert of a list, cannot be a block, because all processes gather a block's weights together.
    """
    names = set(model.model._no_split_modules or ())
    # Sharding replaces a layer's class by a subclass.
    return (module for module in model.modules() if names & {kind.__name__ for kind in type(module).__mro__})


def _mesh(accelerator: Accelerator) -> DeviceMesh:
    """One dimension to shard over; with replicas (HSDP), e.g. one per node, a second one."""
    replicas = int(os.environ.get("PARALLELISM_CONFIG_DP_REPLICATE_SIZE") or 1)
    device, processes = accelerator.device.type, accelerator.num_processes
    if replicas == 1:
        return init_device_mesh(device, (processes,), mesh_dim_names=("shard",))
    mesh = init_device_mesh(device, (replicas, processes // replicas), mesh_dim_names=("replicate", "shard"))
    for group in mesh.get_all_groups():  # the default timeout is 10 minutes with NCCL
        _set_pg_timeout(PROCESS_GROUP.timeout, group)
    return mesh
