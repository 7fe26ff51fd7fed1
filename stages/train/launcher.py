"""Checks the configuration before a worker starts, then runs the workers to their end.

If a worker dies, the command fails. Its caller, such as the flow, starts it again, and training continues from the last
checkpoint.
"""

import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from types import FrameType

from transformers import PreTrainedConfig

from stages.formats.model_folder import CHECKPOINTS
from stages.formats.tokens import VALIDATION, TokenStore
from stages.runtime import supervision
from stages.runtime.atomic import atomic_write, file_sha256
from stages.runtime.errors import EXIT_CONTINUE, EXIT_TERMINATED, STATE_DIR, UnavailableError, UserError
from stages.runtime.launch import LaunchConfig, command, device_count, environment
from stages.runtime.section import read_yaml
from stages.train.compute.hardware import multiplies_bf16_fast, resolve_precision
from stages.train.compute.optim.settings import Precision
from stages.train.params import TrainParams

WORKER = "stages.train.worker"
"""The module that each process of a training runs."""

DIED_AFTER = STATE_DIR / f"train_died_on_{gethostname()}"
"""Names the newest checkpoint at the time when a worker last died on this machine."""

LAUNCH_SETTINGS = "PARROTFLOW_LAUNCH_SETTINGS"

LAUNCHED_PARAMS = "train.json"
"""The parameters for the workers, in the folder of the locks, because params.yaml may be edited during the run."""

RECORDED = {"compute_environment", "distributed_type", "num_machines", "num_processes", "use_cpu"}
RECORDED |= {"fsdp_config", "parallelism_config", "enable_cpu_affinity"}
"""Keys of an accelerate config that are recorded: those that have an effect and hold no addresses."""

AFTER_FAILURE_SECONDS = 20.0
"""How long workers may take to end after one failed. On GPUs they may wait for it in a collective until the process
group's timeout (`processes.PROCESS_GROUP`)."""


def launch(config: LaunchConfig, params: TrainParams) -> int:
    """Run the workers to their end and return the exit code for this command.

    0; 75 after a stop that saved everything; 143 after one that did not. Raises UnavailableError if a worker died, or
    UserError if one has died twice without a new checkpoint in between.
    """
    line, stop = supervision.Supervision(), threading.Event()

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        stop.set()
        line.ask_to_stop()

    (line.folder / LAUNCHED_PARAMS).write_text(params.model_dump_json(), encoding="utf-8")
    before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    values = environment(config) | recorded_launch(config) | {supervision.VARIABLE: str(line.folder)}
    try:
        # In a new session, so that a terminal's Ctrl-C reaches only this command.
        process = subprocess.Popen(command(config, WORKER), env=values, start_new_session=True)
        _wait(process, stop, line)
        if (outcome := line.outcome()) is not None:
            DIED_AFTER.unlink(missing_ok=True)
            return outcome
        if stop.is_set():
            print("stopped before the state was saved; run the same command to continue from the last checkpoint")
            return EXIT_TERMINATED
        if not line.started():
            raise UserError(f"{config.path}: accelerate could not start a worker with it; its messages are above")
        newest = str(max(CHECKPOINTS.glob("*/step-*"), key=lambda path: path.stat().st_mtime, default="no checkpoint"))
        if DIED_AFTER.is_file() and DIED_AFTER.read_text(encoding="utf-8") == newest:
            raise UserError(f"train: a worker died twice after {newest}; its messages are above: fix the cause")
        atomic_write(DIED_AFTER, newest)
        raise UnavailableError(
            "train: a worker died; its messages are above (none if it was killed, as when memory runs out). Run the "
            "same command to continue from the last checkpoint"
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        line.close()


def _wait(process: "subprocess.Popen[bytes]", stop: threading.Event, line: supervision.Supervision) -> None:
    """Wait for the launcher; kill its session `AFTER_FAILURE_SECONDS` after a worker failed.

    A stop before the first step kills it at once: there is nothing to save, and it may be waiting for another machine.
    """
    failed = math.inf
    while process.poll() is None:
        if line.outcome() not in (None, 0, EXIT_CONTINUE, EXIT_TERMINATED):
            failed = min(failed, time.monotonic())
        is_stuck = time.monotonic() >= failed + AFTER_FAILURE_SECONDS
        if is_stuck or (stop.is_set() and not line.can_be_asked()):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)


def recorded_launch(config: LaunchConfig) -> dict[str, str]:
    """The environment variable that tells the workers which launch settings to record.

    It is JSON, because accelerate would read an unquoted `NO` in YAML as false.
    """
    settings = read_yaml(config.path.read_bytes())
    recorded = {name: value for name, value in settings.items() if name in RECORDED}
    return {LAUNCH_SETTINGS: json.dumps(recorded, sort_keys=True)}


def note_idle_devices(config: LaunchConfig) -> Iterator[str]:
    """Yield a note if some GPUs of this machine have no process."""
    processes, gpus = config.processes // config.machines, device_count()
    if not config.on_cpu and processes < gpus:
        yield (
            f"note: {gpus - processes} of {gpus} GPUs of this machine stay idle: {config.path} starts {processes} "
            f"process{'es' if processes > 1 else ''} here; to use all, copy deploy/launch/ddp.yaml (or fsdp2.yaml), "
            f"set num_processes: {gpus} and set PARROTFLOW_LAUNCH to the copy"
        )


def check_batch(params: TrainParams, config: LaunchConfig) -> None:
    """Raise UserError if the global batch cannot be divided evenly, or its micro-batches form no full binary tree."""
    if params.global_batch_size % config.processes:
        raise UserError(
            f"params.yaml: train.global_batch_size = {params.global_batch_size}: {config.path} starts "
            f"{config.processes} processes, and each takes the same number of sequences; "
            "use a multiple, or start fewer processes"
        )
    if size := params.deterministic_micro_batch_size:
        if config.sharded:
            raise UserError(
                f"params.yaml: train.deterministic_micro_batch_size = {size}: {config.path} shards the model (FSDP), "
                "whose gradients are summed by the backend; set it to null, or launch data parallel (ddp, cpu_2)"
            )
        if params.global_batch_size % size or (params.global_batch_size // size).bit_count() != 1:
            raise UserError(
                f"params.yaml: train.deterministic_micro_batch_size = {size}: train.global_batch_size = "
                f"{params.global_batch_size} must be 1, 2, 4, 8, ... times that"
            )
        if config.processes.bit_count() != 1 or config.processes > params.global_batch_size // size:
            raise UserError(
                f"{config.path} starts {config.processes} processes: with "
                f"train.deterministic_micro_batch_size = {size} it can be 1, 2, 4, ... up to "
                f"{params.global_batch_size // size}"
            )


def check_store(store: TokenStore, params: TrainParams, tokenizer: Path) -> None:
    """Raise UserError if a split was made with another tokenizer, or is shorter than one sequence."""
    if file_sha256(tokenizer / "tokenizer.json") != store.manifest.tokenizer_sha256:
        raise UserError(f"{store.folder}: made with another tokenizer than {tokenizer}; run `dvc repro tokenize`")
    if (tokens := store.manifest.tokens) < params.sequence_length:
        raise UserError(
            f"{store.folder}: {tokens} tokens are fewer than one sequence "
            f"(train.sequence_length = {params.sequence_length}); lower it, collect more documents"
            f"{', or raise clean.split.validation_share' if store.folder.name == VALIDATION else ''}"
        )


def note_dropout(params: TrainParams, config: PreTrainedConfig) -> Iterator[str]:
    """Yield a note if dropout makes the result depend on how the run is launched."""
    names = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout", "dropout")
    used = [name for name in names if getattr(config, name, 0)]
    if used and params.deterministic_micro_batch_size is None:
        yield (
            f"note: train.model.{used[0]} > 0: dropout masks depend on the size of micro-batches, so other hardware "
            "gives another result; train.deterministic_micro_batch_size fixes them"
        )


def describe_precision(asked: Precision, device_type: str) -> str:
    """The resolved precision, with a remark if the other one is faster on this hardware."""
    chosen = resolve_precision(asked, device_type)
    faster = "bf16" if multiplies_bf16_fast(device_type) else "fp32"
    if chosen == faster:
        return chosen
    here = "GPU" if device_type == "cuda" else "CPU"
    return f"{chosen} (slow: {faster} is faster on this {here}; train.precision: auto takes it)"
