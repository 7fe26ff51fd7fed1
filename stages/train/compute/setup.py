"""How a trainer is built: data order and model, then the model as the hardware wants it, then the optimizers."""

from typing import Any, cast

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from stages.formats.tokens import Manifest, TokenStore
from stages.train.compute.data.order import open_order
from stages.train.compute.hardware import micro_batch_size, repeat_bits, should_compile
from stages.train.compute.model.attention import use_flex_attention
from stages.train.compute.model.build import build_model, flops_per_token, made_trainable
from stages.train.compute.model.loss import CausalLoss
from stages.train.compute.optim.settings import build_optimizers
from stages.train.compute.parallel import blocks, on_main, shard, uses_fsdp, wrap_ddp
from stages.train.compute.params import ComputingParams
from stages.train.compute.step import Trainer


def build_trainer(params: ComputingParams, accelerator: Accelerator, store: TokenStore) -> Trainer:
    """Build what a process trains with. `precision` is resolved: never auto. Every process calls this.

    Raises UserError if the model cannot be built, or does not fit.
    """
    repeat_bits(accelerator.device, asked_for=params.deterministic_micro_batch_size is not None)
    order = open_order(store, params)
    raw_model = build(params, accelerator, store.manifest)
    flops = flops_per_token(raw_model.model, params.sequence_length)
    compiled = should_compile(params, flops, accelerator.device)
    if uses_fsdp():
        shard_and_fill(raw_model, accelerator)
    else:
        raw_model.to(accelerator.device)
    if raw_model.by_document and accelerator.device.type == "cuda":
        use_flex_attention(raw_model.model)
    rows = micro_batch_size(params, accelerator, raw_model)
    optimizers = build_optimizers(raw_model.model, params.optimizer, params.precision)
    model = compiled_and_wrapped(raw_model, params, accelerator, compiled)
    return Trainer(params, accelerator, store, order, raw_model, model, optimizers, rows, flops, compiled)


def build(params: ComputingParams, accelerator: Accelerator, vocabulary: Manifest) -> CausalLoss:
    """The model with its loss on the CPU; of a sharded one only the main process's has values. Every process calls it.

    Eight processes would hold eight times all fp32 weights in the host's memory until they are sharded. So the others
    make a model whose memory is allocated and never written, which takes none of the machine's; `shard_and_fill` sends
    them the main process's values, one weight at a time. On torch's meta device a model would forget which weights are
    tied, and the buffers that it computes from its config (rotary frequencies).

    Raises UserError as `build_model` does, on every process.
    """
    if not uses_fsdp() or accelerator.num_processes == 1:
        return CausalLoss(build_model(params, vocabulary), params)
    own: list[CausalLoss] = []

    def with_values() -> tuple[PreTrainedConfig, bool]:
        own.append(CausalLoss(build_model(params, vocabulary), params))
        return own[0].model.config, own[0].plain_head

    config, plain_head = on_main(accelerator, with_values)
    if own:
        return own[0]
    with no_init_weights():  # the weights are what the memory holds
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    model.tie_weights()
    return CausalLoss(made_trainable(model, params), params, plain_head)


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


def compiled_and_wrapped(
    raw_model: CausalLoss, params: ComputingParams, accelerator: Accelerator, compiled: bool
) -> nn.Module:
    """The model as the hardware wants it: compiled, data parallel. Every process calls this."""
    fixed_order = params.deterministic_micro_batch_size is not None
    # Else kernels may be chosen by their times on the device, which differ from run to run.
    options: dict[str, Any] = {"deterministic": fixed_order}
    model: nn.Module = raw_model
    # Each size of a micro-batch is compiled. Beyond torch's limit of 8 it would run one eagerly, with other last bits.
    torch._dynamo.config.recompile_limit = 8 * max(1, len(list(blocks(raw_model))) if uses_fsdp() else 1)
    if compiled and uses_fsdp():
        # `forward` alone: FSDP's hooks gather weights, and would split what is compiled. Layers alike share the code.
        for block in blocks(raw_model):
            block.forward = torch.compile(block.forward, dynamic=False, options=options)
    elif compiled:
        model = cast(nn.Module, torch.compile(model, dynamic=False, options=options))
    if not uses_fsdp() and not fixed_order:
        model = wrap_ddp(model, accelerator)
    return model
