"""The model as training begins: built by each process, or, where it is sharded, by the main one alone.

Each process of a sharded model would hold all of its fp32 weights in the host's memory until it is cut up: eight of 28
GB for one of 7 billion. So the others make a model whose memory is allocated and never written, which takes none of the
machine's. They cut it up, and their shards get the main process's values, one weight at a time: the same bits.

Why not torch's meta device: torch forgets which weights are one (tied) when it gives them memory, and the buffers that
a model computes from its config (rotary frequencies) would have to be known and computed again.
"""

from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from stages.formats.tokens import Manifest
from stages.train.distributed.parallel import on_main, shard, uses_fsdp
from stages.train.model.attention import register_unmasked
from stages.train.model.build import build_model, made_trainable
from stages.train.model.loss import CausalLoss
from stages.train.params import TrainParams


def build(params: TrainParams, accelerator: Accelerator, vocabulary: Manifest) -> CausalLoss:
    """The model with its loss on the CPU; of a sharded one only the main process's has values. Every process calls it.

    Raises UserError as `build_model` does, on every process.
    """
    if not uses_fsdp() or accelerator.num_processes == 1:
        return CausalLoss(build_model(params, vocabulary), params)
    own: list[CausalLoss] = []

    def with_values() -> tuple[PreTrainedConfig, bool]:
        own.append(CausalLoss(build_model(params, vocabulary), params))
        return own[0].model.config, own[0].plain_head

    config, plain_head = on_main(accelerator, with_values)
    return own[0] if own else CausalLoss(_without_values(config, params), params, plain_head)


def _without_values(config: PreTrainedConfig, params: TrainParams) -> PreTrainedModel:
    """A model of the same shape, whose weights are what the memory holds."""
    register_unmasked()
    with no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    model.tie_weights()
    return made_trainable(model, params)


def shard_and_fill(model: CausalLoss, accelerator: Accelerator) -> None:
    """Shard a model of `build`, and give each shard its values. Every process calls this."""
    alone = accelerator.num_processes == 1
    whole: dict[str, Tensor] = model.state_dict() if accelerator.is_main_process and not alone else {}
    shard(model, accelerator)
    if alone:
        return
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, dict[str, Any](whole), options=options)
    for buffer in model.buffers():  # also those that no state dict has
        dist.broadcast(buffer, 0)
