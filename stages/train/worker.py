"""One training process, started by `accelerate launch`; `python -m stages.train` does that.

The loop owns what must not depend on the hardware: the data order, the learning rate, the loss's normalisation, the
random numbers and the checkpoints. Accelerate owns the process group and the device.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils import deterministic
from transformers.utils import logging

from stages.formats.checkpoints import CHECKPOINTS
from stages.formats.revision.execution import Session
from stages.formats.splits import TRAIN, VALIDATION
from stages.formats.tokens import TOKENS, TokenStore
from stages.runtime.entry import EXIT_CONTINUE, EXIT_TERMINATED, UserError, first_line, run_stage
from stages.runtime.launch.supervision import follow_command, is_first_to_fail, leave
from stages.train.checkpoint.checkpoints import Checkpoints
from stages.train.checkpoint.fingerprint import fingerprint, identity
from stages.train.checkpoint.mirror import Mirror
from stages.train.checkpoint.resume import resume
from stages.train.data.packing import build_packing
from stages.train.distributed.agreement import count, on_main
from stages.train.distributed.compile import should_compile, stays_compiled
from stages.train.distributed.micro_batch import VARIABLE as MICRO_BATCH
from stages.train.distributed.micro_batch import micro_batch_size
from stages.train.distributed.parallel import shard, spread, uses_fsdp
from stages.train.launch.section import section_of_command
from stages.train.loop import StoppedError, StopSignal, Trainer, train
from stages.train.model.build import build_model, flops_per_token
from stages.train.model.loss import CausalLoss
from stages.train.model.precision import resolve_precision
from stages.train.model.source import source_sha256
from stages.train.monitoring.execution import describe_session
from stages.train.monitoring.report import Report
from stages.train.monitoring.results import write_results
from stages.train.monitoring.throughput import Throughput, peak_flops
from stages.train.monitoring.trackers import TRACKERS, Trackers
from stages.train.optim.optimizer import build_optimizers
from stages.train.params import TrainParams
from stages.train.validation import Evaluation


def main() -> None:
    """What one process does."""
    follow_command()
    stop = StopSignal()
    params = section_of_command()
    accelerator = start_accelerator(params)
    trainer = build_trainer(params, accelerator, stop)
    params, validation = trainer.params, TokenStore(TOKENS / VALIDATION)

    run = run_identity(params, accelerator, [trainer.store, validation])
    name = fingerprint(run)
    checkpoints = Checkpoints(CHECKPOINTS / name, accelerator, params, Mirror(name))
    start = resume(checkpoints, params, trainer.eager, trainer.optimizers, run)
    progress = start.progress
    trainer = compile_and_spread(trainer, checkpoints.history.sessions)
    checkpoints.history.sessions.append(describe_session(trainer, progress.step + 1, start.continued_from))
    trackers = Trackers(params, accelerator, name, progress.step)

    trainer.throughput.restart()
    report = Report(params, trainer.throughput, checkpoints.curves, trackers, accelerator.is_main_process)
    evaluation = Evaluation(params, accelerator, validation, trainer.eager, rows_at_once=trainer.micro_batch_size)
    try:
        progress = train(trainer, evaluation, checkpoints, report, progress)
    except StoppedError as stopped:
        state = "state saved" if stopped.saved else "its last steps could not be saved"
        accelerator.print(f"stopped on request, {state}; the same command continues")
        raise SystemExit(EXIT_CONTINUE if stopped.saved else EXIT_TERMINATED) from None
    write_results(trainer, progress, evaluation.measure(), checkpoints)
    trackers.finish()
    raise SystemExit(0)


def start_accelerator(params: TrainParams) -> Accelerator:
    """Join the other processes, if there are any."""
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process: as intended
    return Accelerator(mixed_precision="no", log_with=params.trackers or None, project_dir=TRACKERS)


def build_trainer(params: TrainParams, accelerator: Accelerator, stop: StopSignal) -> Trainer:
    """Data, model and optimizers, before anything is loaded. Every process calls this; `compile_and_spread` follows."""
    # Decided by the main process's hardware: machines may differ, the computation may not.
    precision = on_main(accelerator, lambda: resolve_precision(params, accelerator.device.type).precision)
    params = params.model_copy(update={"precision": precision})
    fixed_order = params.deterministic_micro_batch_size is not None
    repeat_bits(accelerator.device, asked_for=fixed_order)
    training = TokenStore(TOKENS / TRAIN)
    index = build_packing(training, params.sequence_length, params.packing)

    eager = CausalLoss(build_model(params, training.manifest), params)
    flops, peak = flops_per_token(eager.model, params.sequence_length), peak_flops(accelerator.device)
    throughput = Throughput(flops, peak and peak * accelerator.num_processes)
    compiled = should_compile(params, flops, accelerator.device)
    eager.to(accelerator.device)
    if uses_fsdp():
        shard(eager, accelerator)
    micro_batch = micro_batch_size(params, accelerator, eager)
    optimizers = build_optimizers(eager.model, params)
    return Trainer(
        params, accelerator, training, index, eager, eager, optimizers, compiled, micro_batch, stop, throughput
    )


def compile_and_spread(trainer: Trainer, sessions: list[Session]) -> Trainer:
    """The trainer with its model compiled, if it is to be, and data parallel; `sessions`: those that it continues.

    Every process calls this.
    """
    fixed_order = trainer.params.deterministic_micro_batch_size is not None
    compiled = stays_compiled(trainer.compiled, sessions, trainer.accelerator.device)
    # Else kernels may be chosen by their times on the device, which differ from run to run.
    options: dict[str, Any] = {"deterministic": fixed_order}
    eager = trainer.eager
    # Each size of a micro-batch is compiled. Beyond torch's limit of 8 it would run one eagerly, with other last bits.
    torch._dynamo.config.recompile_limit = 8 + 2 * len(trainer.params.batch_doublings)
    model = cast(nn.Module, torch.compile(eager, dynamic=False, options=options)) if compiled else eager
    if not uses_fsdp() and not fixed_order:
        model = spread(model, trainer.accelerator)
    return replace(trainer, model=model, compiled=compiled)


def repeat_bits(device: torch.device, asked_for: bool = False) -> None:
    """Make the same run give the same bits: compiled code on a CPU otherwise adds gradients in the order of threads.

    On GPUs the fast kernels add in the order of their blocks, so there it is done only if the parameters ask for
    deterministic sums; a kernel that has no such variant then ends the run with torch's own message.
    """
    if device.type == "cpu" or asked_for:
        # Read when cuBLAS is first used (its documentation, "Results reproducibility").
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # A search for bugs of others, at a cost in each step.
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def run_identity(params: TrainParams, accelerator: Accelerator, stores: list[TokenStore]) -> dict[str, Any]:
    """What the weights depend on. Raises UserError where another machine has other data, parameters or code."""
    own = identity(params, stores)
    if params.start_from is not None:
        own["start_from"] = source_sha256(params.start_from)
    run = on_main(accelerator, lambda: own)
    if others := accelerator.num_processes - count(accelerator, fingerprint(own) == fingerprint(run)):
        raise UserError(
            f"train: {others} of {accelerator.num_processes} processes have other parameters, data, libraries or code "
            "than the main one; every machine needs the same"
        )
    return run


def run_worker(main: Callable[[], None]) -> None:
    """Run what a worker does, and tell the command how it ended."""
    try:
        run_stage(partial(_with_one_message, main))
    except SystemExit as ended:
        leave(ended.code if isinstance(ended.code, int) else 0)


def _with_one_message(main: Callable[[], None]) -> None:
    """What one worker cannot do the others cannot either: the first says so, the others exit silently."""
    try:
        main()
    except torch.OutOfMemoryError as error:
        message = f"train: out of memory on the GPU; set {MICRO_BATCH} to fewer sequences ({first_line(error)})"
        raise SystemExit(_say_once(UserError(message))) from None
    except UserError as error:
        raise SystemExit(_say_once(error)) from None


def _say_once(error: UserError) -> int:
    if is_first_to_fail():
        raise error
    return error.exit_code


if __name__ == "__main__":
    run_worker(main)
