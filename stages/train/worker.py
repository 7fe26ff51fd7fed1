"""One training process, started by `accelerate launch`; `python -m stages.train` does that.

The loop owns what must not depend on the hardware: the data order, the learning rate, the loss's normalisation, the
random numbers and the checkpoints. Accelerate owns the process group and the device. Started by itself it trains in one
process, which is the way to debug it.
"""

import os
import time
import warnings
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.utils import logging

from stages.formats.model_folder import CHECKPOINTS
from stages.formats.tokens import TOKENS, TRAIN, VALIDATION, Manifest, TokenStore
from stages.runtime.errors import EXIT_CONTINUE, EXIT_TERMINATED, UserError, first_line
from stages.runtime.launch import SEGMENT
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage
from stages.runtime.supervision import VARIABLE, follow_command, is_first_to_fail, leave
from stages.train.checkpoint.checkpoints import Checkpoints
from stages.train.checkpoint.resume import fingerprint, identity, resume
from stages.train.data.order import open_order
from stages.train.hardware import MICRO_BATCH, micro_batch_size, repeat_bits, resolve_precision, should_compile
from stages.train.launcher import LAUNCHED_PARAMS
from stages.train.loop import Setup, StopSignal, Trainer, TrainingStoppedError, train
from stages.train.model.attention import use_flex_attention
from stages.train.model.build import build_model, flops_per_token, made_trainable
from stages.train.model.loss import CausalLoss
from stages.train.monitoring.params import MonitoringParams
from stages.train.monitoring.report import TRACKERS, Reporter, Validation, start_trackers
from stages.train.monitoring.results import describe_session, write_train_results
from stages.train.monitoring.throughput import Throughput, peak_flops
from stages.train.optim.settings import build_optimizers
from stages.train.parallel import (
    PROCESS_GROUP,
    blocks,
    count,
    on_main,
    shard,
    spread,
    uses_fsdp,
)
from stages.train.params import TrainParams


def main() -> None:
    """Train in one process."""
    follow_command()
    stop = StopSignal()
    setup = set_up(launched_params(), read_section("monitoring", MonitoringParams), stop)
    params, accelerator = setup.params, setup.accelerator
    compiled = should_compile(params, setup.throughput.flops_per_token, accelerator.device)

    held_out = TokenStore(TOKENS / VALIDATION)
    run = run_identity(params, accelerator, [setup.store, held_out])
    name = fingerprint(run)
    checkpoints = Checkpoints(CHECKPOINTS / name, accelerator, params, setup.monitoring)
    progress = resume(checkpoints, setup.eager, setup.optimizers, run)
    trainer = compile_and_spread(setup, compiled)
    checkpoints.history.sessions.append(describe_session(trainer, progress.step + 1))

    segment = [int(step) for step in os.environ.get(SEGMENT, "").split(",") if step]
    steps = range(progress.step, segment[-1] if segment else params.max_steps)
    if segment and steps.start != segment[0]:
        raise UserError(f"the checkpoint of step {segment[0]} cannot be continued by these parameters")
    start_trackers(setup.monitoring, params, accelerator, name, steps.start)
    trainer.throughput.began = time.perf_counter()
    reporter = Reporter(params, steps, trainer.throughput, checkpoints.curves, accelerator)
    validation = Validation(params, accelerator, held_out, trainer.eager, rows_at_once=trainer.micro_batch_size)
    try:
        progress, measured = train(trainer, validation, checkpoints, reporter, progress, segment)
    except TrainingStoppedError as stopped:
        state = "state saved" if stopped.saved else "its last steps could not be saved"
        accelerator.print(f"stopped on request, {state}; the same command continues")
        raise SystemExit(EXIT_CONTINUE if stopped.saved else EXIT_TERMINATED) from None
    if progress.step == params.max_steps:
        if measured is None:  # this start computed no step
            measured = validation.measure()
        write_train_results(trainer, progress, measured, checkpoints)
    for tracker in accelerator.trackers:
        tracker.finish()  # not `end_training`, which also frees the process groups (see `supervision.leave`)
    raise SystemExit(0)


def launched_params() -> TrainParams:
    """The parameters with which the command started; without a command those of params.yaml."""
    if folder := os.environ.get(VARIABLE):
        return TrainParams.model_validate_json((Path(folder) / LAUNCHED_PARAMS).read_bytes())
    return read_section("train", TrainParams)


def set_up(params: TrainParams, monitoring: MonitoringParams, stop: StopSignal) -> Setup:
    """Join the other processes, if there are any; then data, model and optimizers. Every process calls this."""
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process: as intended
    accelerator = Accelerator(
        mixed_precision="no",
        log_with=monitoring.trackers or None,
        project_dir=TRACKERS,
        kwargs_handlers=[PROCESS_GROUP],
    )
    # Decided by the main process's hardware: machines may differ, the computation may not.
    precision = on_main(accelerator, lambda: resolve_precision(params, accelerator.device.type).precision)
    params = params.model_copy(update={"precision": precision})
    repeat_bits(accelerator.device, asked_for=params.deterministic_micro_batch_size is not None)
    store = TokenStore(TOKENS / TRAIN)
    order = open_order(store, params)

    eager = build(params, accelerator, store.manifest)
    flops = flops_per_token(eager.model, params.sequence_length)
    peak = peak_flops(accelerator.device, params.precision)
    throughput = Throughput(flops, peak and peak * accelerator.num_processes)
    if uses_fsdp():
        shard_and_fill(eager, accelerator)
    else:
        eager.to(accelerator.device)
    if eager.by_document and accelerator.device.type == "cuda":
        use_flex_attention(eager.model)
    micro_batch = micro_batch_size(params, accelerator, eager)
    optimizers = build_optimizers(eager.model, params.optimizer, params.precision)
    return Setup(params, monitoring, accelerator, store, order, eager, optimizers, micro_batch, throughput, stop)


def build(params: TrainParams, accelerator: Accelerator, vocabulary: Manifest) -> CausalLoss:
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


def compile_and_spread(setup: Setup, compiled: bool) -> Trainer:
    """The model as the hardware wants it: compiled, data parallel. Every process calls this."""
    fixed_order = setup.params.deterministic_micro_batch_size is not None
    # Else kernels may be chosen by their times on the device, which differ from run to run.
    options: dict[str, Any] = {"deterministic": fixed_order}
    model: nn.Module = setup.eager
    # Each size of a micro-batch is compiled. Beyond torch's limit of 8 it would run one eagerly, with other last bits.
    torch._dynamo.config.recompile_limit = 8 * max(1, len(list(blocks(setup.eager))) if uses_fsdp() else 1)
    if compiled and uses_fsdp():
        # `forward` alone: FSDP's hooks gather weights, and would split what is compiled. Layers alike share the code.
        for block in blocks(setup.eager):
            block.forward = torch.compile(block.forward, dynamic=False, options=options)
    elif compiled:
        model = cast(nn.Module, torch.compile(model, dynamic=False, options=options))
    if not uses_fsdp() and not fixed_order:
        model = spread(model, setup.accelerator)
    return Trainer(**vars(setup), model=model, compiled=compiled)


def run_identity(params: TrainParams, accelerator: Accelerator, stores: list[TokenStore]) -> dict[str, Any]:
    """Everything that the weights depend on. Raises UserError if another machine has other data, parameters or code."""
    own = identity(params, stores)
    run = on_main(accelerator, lambda: own)
    if others := accelerator.num_processes - count(accelerator, fingerprint(own) == fingerprint(run)):
        raise UserError(
            f"train: {others} of {accelerator.num_processes} processes have other parameters, data, libraries or code "
            "than the main one; every machine needs the same"
        )
    return run


def run_worker() -> None:
    """Run the worker, and tell the command how it ended.

    What one worker cannot do the others cannot either: the first says so, the others exit silently.
    """

    def with_one_message() -> None:
        try:
            try:
                main()
            except torch.OutOfMemoryError as error:
                said = f"out of memory on the GPU; set {MICRO_BATCH} to fewer sequences ({first_line(error)})"
                raise UserError(f"train: {said}") from None
        except UserError as error:
            if is_first_to_fail():
                raise
            raise SystemExit(error.exit_code) from None

    try:
        run_stage(with_one_message)
    except SystemExit as ended:
        leave(ended.code if isinstance(ended.code, int) else 0)


if __name__ == "__main__":
    run_worker()
