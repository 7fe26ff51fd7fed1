"""One training process, started through `accelerate launch` by `python -m stages.train`.

Accelerate provides the process group and the device. To debug, run `python -m stages.train.worker`: it trains in one
process.
"""

import os
import warnings
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers.utils import logging

from stages.formats.model_folder import CHECKPOINTS
from stages.formats.reports import write_json
from stages.formats.revision.execution import TRAIN_SPEED
from stages.formats.tokens import TOKENS, TRAIN, VALIDATION, TokenStore
from stages.runtime.errors import EXIT_CONTINUE, EXIT_TERMINATED, UserError, first_line
from stages.runtime.launch import SEGMENT
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage
from stages.runtime.supervision import VARIABLE, follow_command, is_first_to_fail, leave
from stages.train.checkpoint.checkpoints import Checkpoints
from stages.train.checkpoint.identity import fingerprint, held_out_sha256, shared_identity
from stages.train.checkpoint.manifest import History
from stages.train.checkpoint.resume import precision_of_run, resume
from stages.train.compute.hardware import MICRO_BATCH
from stages.train.compute.processes import PROCESS_GROUP, on_main
from stages.train.compute.setup import build_trainer
from stages.train.launcher import LAUNCHED_PARAMS
from stages.train.loop import StopSignal, TrainingStoppedError, train
from stages.train.monitoring.params import MonitoringParams
from stages.train.monitoring.report import TRACKERS, Reporter, start_trackers
from stages.train.monitoring.results import describe_session, speed, write_train_results
from stages.train.monitoring.throughput import Throughput, peak_flops
from stages.train.monitoring.validation import Validation
from stages.train.params import TrainParams


def main() -> None:
    """Train, as one of the processes."""
    follow_command()
    stop = StopSignal()
    params, monitoring = launched_params(), read_section("monitoring", MonitoringParams)
    accelerator = join(monitoring)
    store, held_out = TokenStore(TOKENS / TRAIN), TokenStore(TOKENS / VALIDATION)
    run = shared_identity(params, accelerator, store)
    name = fingerprint(run)
    checkpoints = Checkpoints(CHECKPOINTS / name, accelerator, params, monitoring)
    checkpoints.history = History(held_out=held_out_sha256(held_out, params.evaluation_sequences))
    latest = checkpoints.latest()
    # Decided by the main process's hardware, because machines may differ.
    precision = on_main(accelerator, lambda: precision_of_run(latest, params.precision, accelerator.device.type))
    params = params.model_copy(update={"precision": precision})
    trainer = build_trainer(params, accelerator, store)
    progress = resume(checkpoints, latest, trainer.raw_model, trainer.optimizers, run)
    checkpoints.history.sessions.append(describe_session(trainer, progress.step + 1))

    segment = [int(step) for step in os.environ.get(SEGMENT, "").split(",") if step]
    steps = range(progress.step, segment[-1] if segment else params.max_steps)
    if segment and steps.start != segment[0]:
        raise UserError(f"the checkpoint of step {segment[0]} cannot be continued by these parameters")
    start_trackers(monitoring, params, accelerator, name, steps.start)
    peak = peak_flops(accelerator.device, precision)
    throughput = Throughput(trainer.flops_per_token, peak and peak * accelerator.num_processes)
    reporter = Reporter(params, steps, throughput, checkpoints.curves, accelerator)
    validation = Validation(params, accelerator, held_out, trainer.raw_model, rows_at_once=trainer.micro_batch_size)
    try:
        progress = train(trainer, stop, validation, checkpoints, reporter, progress, segment)
    except TrainingStoppedError as stopped:
        if accelerator.is_main_process:
            write_json(TRAIN_SPEED, speed(trainer, throughput))
        state = f"state saved at step {stopped.step}" if stopped.step else "its last steps could not be saved"
        accelerator.print(f"stopped on request, {state}; run the same command to continue")
        raise SystemExit(EXIT_CONTINUE if stopped.step else EXIT_TERMINATED) from None
    if progress.step == params.max_steps:
        if not on_main(accelerator, lambda: checkpoints.curves.has_held_out):  # measured on other held-out tokens
            reporter.validation(progress.step, validation.measure())
        write_train_results(trainer, throughput, progress, checkpoints)
    for tracker in accelerator.trackers:
        tracker.finish()  # not `accelerator.end_training`, which also frees the process groups (`supervision.leave`)
    raise SystemExit(0)


def launched_params() -> TrainParams:
    """The parameters that the command passes, or those of params.yaml if this process was started by itself."""
    if folder := os.environ.get(VARIABLE):
        return TrainParams.model_validate_json((Path(folder) / LAUNCHED_PARAMS).read_bytes())
    return read_section("train", TrainParams)


def join(monitoring: MonitoringParams) -> Accelerator:
    """Join the process group, if there is one."""
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # intended with one process
    return Accelerator(
        mixed_precision="no",
        log_with=monitoring.trackers or None,
        project_dir=TRACKERS,
        kwargs_handlers=[PROCESS_GROUP],
    )


def run_worker() -> None:
    """Run the worker, and tell the command how it ended.

    All workers hit the same user error: the first prints it, the others exit silently.
    """

    def with_one_message() -> None:
        try:
            try:
                main()
            except torch.OutOfMemoryError as error:
                cause = f"out of memory on the GPU; set {MICRO_BATCH} to fewer sequences ({first_line(error)})"
                raise UserError(f"train: {cause}") from None
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
