"""One training process, started by `accelerate launch`; `python -m stages.train` does that.

The loop owns what must not depend on the hardware: the data order, the learning rate, the loss's normalisation, the
random numbers and the checkpoints. Accelerate owns the process group and the device.
"""

import math
import os
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils import deterministic
from transformers.utils import logging

from stages.formats.tokens import TokenStore
from stages.runtime.entry import UserError, run_stage
from stages.runtime.section import read_section
from stages.train.checkpoint.checkpoints import Checkpoints, Progress
from stages.train.checkpoint.fingerprint import fingerprint, identity, plateau_end, record_identity, why_afresh
from stages.train.checkpoint.mirror import Mirror
from stages.train.data.packing import build_packing
from stages.train.distributed.compile import should_compile
from stages.train.distributed.micro_batch import micro_batch_size
from stages.train.distributed.parallel import shard, spread, uses_fsdp
from stages.train.launch.launcher import EXIT_CONTINUE
from stages.train.launch.supervision import follow_command, is_first_to_fail, leave
from stages.train.loop import PreemptedError, StopSignal, Trainer, train
from stages.train.model.build import build_model, flops_per_token
from stages.train.model.loss import CausalLoss
from stages.train.monitoring.report import Report
from stages.train.monitoring.results import write_results
from stages.train.monitoring.throughput import Clock, peak_flops
from stages.train.monitoring.trackers import Trackers
from stages.train.monitoring.validation import Evaluation
from stages.train.optim.optimizer import Optimizers, build_optimizers
from stages.train.params import TrainParams

TOKENS = Path("data/tokens")
TRACKERS = Path(".parrotflow/trackers")


def main() -> None:
    """The story of one process."""
    follow_command()
    stop = StopSignal()
    params = read_section("train", TrainParams)
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process: as intended
    accelerator = Accelerator(mixed_precision="no", log_with=params.trackers or None, project_dir=TRACKERS)
    exact = params.deterministic_micro_batch_size is not None
    repeat_bits(accelerator.device, asked_for=exact)
    training, validation = TokenStore(TOKENS / "train"), TokenStore(TOKENS / "validation")
    index = build_packing(training, params.sequence_length, params.packing)

    eager = CausalLoss(build_model(params, training.manifest), params)
    flops = flops_per_token(eager.model, params.sequence_length)
    compiled = should_compile(params, flops, accelerator.device)
    eager.to(accelerator.device)
    if uses_fsdp():
        shard(eager, accelerator)
    micro_batch = micro_batch_size(params, accelerator, eager)
    # Else kernels may be chosen by their times on the device, which differ from run to run.
    options: dict[str, Any] = {"deterministic": exact}
    model = cast(nn.Module, torch.compile(eager, dynamic=False, options=options)) if compiled else eager
    if not uses_fsdp() and not exact:
        model = spread(model, accelerator)
    optimizers = build_optimizers(eager, params.optimizer)

    run = identity(params, [training, validation])
    name = fingerprint(run)
    trackers = Trackers(params, accelerator, name)
    checkpoints = Checkpoints(name, accelerator, params, Mirror(name))
    progress = resume(checkpoints, params, eager, optimizers, run)

    clock = Clock(flops, peak_flops(accelerator.device) * accelerator.num_processes)
    report = Report(params, clock, checkpoints.curves, trackers, accelerator.is_main_process)
    trainer = Trainer(params, accelerator, training, index, model, eager, optimizers, micro_batch, stop, clock)
    evaluation = Evaluation(params, accelerator, validation, eager, rows_at_once=micro_batch)
    try:
        progress = train(trainer, evaluation, checkpoints, report, progress)
    except PreemptedError:
        accelerator.print("stopped on request, state saved; the same command goes on")
        raise SystemExit(EXIT_CONTINUE) from None
    write_results(trainer, progress, evaluation.measure(), checkpoints, compiled)
    accelerator.end_training()
    raise SystemExit(0)


def repeat_bits(device: torch.device, asked_for: bool = False) -> None:
    """Have the same run give the same bits: compiled code on a CPU else adds gradients in the order of its threads.

    On GPUs the fast kernels add in the order of their blocks, so there it is done only where the parameters ask for
    exact sums; a kernel that has no such variant then ends the run with torch's own message.
    """
    if device.type == "cpu" or asked_for:
        # Read when cuBLAS is first used (its documentation, "Results reproducibility").
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # A search for bugs of others, at a cost in each step.
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def resume(
    checkpoints: Checkpoints, params: TrainParams, model: CausalLoss, optimizers: Optimizers, run: dict[str, Any]
) -> Progress:
    """Go back to the newest checkpoint that this run may go on from, or start at step 0 and say why."""
    curves, printed = checkpoints.curves, checkpoints.accelerator.print
    past: list[Progress] = []

    def shared_steps(progress: Progress) -> int:
        """How many steps a run of another length goes the same way."""
        return min(plateau_end(params.schedule, steps) for steps in (progress.max_steps, params.max_steps))

    def fits(progress: Progress) -> bool:
        if progress.max_steps == params.max_steps or progress.step <= shared_steps(progress):
            return True
        past.append(progress)
        return False

    place = checkpoints.latest(fits)
    if checkpoints.accelerator.is_main_process:
        curves.restore(place)
        record_identity(checkpoints.folder, run)
    if place is None and past:
        printed(
            f"starting afresh, not from the checkpoints of the run of {past[-1].max_steps} steps: a run of "
            f"{params.max_steps} has the same learning rates up to step {shared_steps(past[-1])}, and the earliest "
            f"checkpoint is of step {past[-1].step} (train.milestone_every_steps keeps earlier ones)"
        )
    elif place is None:
        for line in why_afresh(checkpoints.folder, run):
            printed(f"starting afresh, not from another run's checkpoints: {line}")
    if place is None:
        return Progress(step=0, training_loss=math.nan, max_steps=params.max_steps)
    progress = checkpoints.load(place, model, optimizers)
    printed(f"continuing at step {progress.step} of {params.max_steps}, from {place}")
    if checkpoints.accelerator.is_main_process:
        curves.cut_after(progress.step)
        if progress.max_steps != params.max_steps:
            curves.forget_end(progress.step, params.log_every_steps, params.evaluate_every_steps)
    return progress


def main_or_one_message() -> None:
    """What one worker cannot do the others cannot either: the first says so, the others leave without a word."""
    try:
        main()
    except UserError as error:
        if is_first_to_fail():
            raise
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    try:
        run_stage(main_or_one_message)
    except SystemExit as ended:
        leave(ended.code if isinstance(ended.code, int) else 0)
