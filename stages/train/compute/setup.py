"""Builds a trainer: the model, parallelized and compiled for the hardware, and the optimizers."""

from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import nn

from stages.formats.tokens import TokenStore
from stages.train.compute.data.order import open_order
from stages.train.compute.fsdp import apply_fsdp, build_on_main, compile_blocks, uses_fsdp
from stages.train.compute.hardware import micro_batch_size, set_determinism, should_compile
from stages.train.compute.model.build import build_model
from stages.train.compute.model.documents import use_flex_attention
from stages.train.compute.model.flops import flops_per_token
from stages.train.compute.model.head_rows import head_rows
from stages.train.compute.model.loss import CausalLoss
from stages.train.compute.optim.build import build_optimizers
from stages.train.compute.parallel import wrap_ddp
from stages.train.compute.params import ComputingParams
from stages.train.compute.step import Trainer


def build_trainer(params: ComputingParams, accelerator: Accelerator, store: TokenStore) -> Trainer:
    """Build a process's trainer. `params.precision` must be resolved. Every process calls this.

    Raises UserError if the model cannot be built or does not fit.
    """

    def build() -> CausalLoss:
        return CausalLoss(build_model(params, store.manifest), params)

    fixed_order, sharded = params.deterministic_micro_batch_size is not None, uses_fsdp()
    set_determinism(accelerator.device, asked_for=fixed_order)
    order = open_order(store, params)
    raw_model = build_on_main(build, params, accelerator) if sharded else build()
    raw_model.head_rows = head_rows(params, store, len(raw_model.model.get_output_embeddings().weight))
    flops = flops_per_token(raw_model.model, params.sequence_length, params.head_rows)
    compiled = should_compile(params, flops, accelerator.device)
    if sharded:
        apply_fsdp(raw_model, accelerator)
    else:
        raw_model.to(accelerator.device)
    if raw_model.by_document and accelerator.device.type == "cuda":
        use_flex_attention(raw_model.model)
    rows = micro_batch_size(params, accelerator, raw_model)
    optimizers = build_optimizers(raw_model.model, params.optimizer, params.precision)
    model = compile_model(raw_model, fixed_order, sharded) if compiled else raw_model
    if not sharded and not fixed_order:
        model = wrap_ddp(model, accelerator)
    return Trainer(params, accelerator, store, order, raw_model, model, optimizers, rows, flops, compiled)


def compile_model(raw_model: CausalLoss, fixed_order: bool, sharded: bool) -> nn.Module:
    """The compiled model. A sharded model's blocks are compiled in place."""
    # Without this option kernels may be chosen by timing, which differs from run to run.
    options: dict[str, Any] = {"deterministic": fixed_order}
    # Each micro-batch size is compiled. Beyond torch's limit of 8, sizes run eagerly, with other last bits.
    torch._dynamo.config.recompile_limit = 8
    if sharded:
        compile_blocks(raw_model, options)
        return raw_model
    return cast(nn.Module, torch.compile(raw_model, dynamic=False, options=options))
