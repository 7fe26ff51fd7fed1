"""Checks what can be known to be wrong before a worker starts; then runs the workers to their end.

Workers that die are started again, `PARROTFLOW_RESTARTS` times (3 if unset), and continue from the last checkpoint.
They are told the `train` section as the command read it, once: an edit of params.yaml during a run changes nothing that
is computed, also not in workers that are started again.
"""

import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import yaml
from accelerate.utils.other import is_port_in_use
from transformers import PreTrainedConfig

from stages.formats.splits import VALIDATION
from stages.formats.tokens import TokenStore
from stages.runtime import supervision
from stages.runtime.atomic import file_sha256
from stages.runtime.entry import EXIT_CONTINUE, EXIT_TERMINATED, UserError, whole_number
from stages.runtime.launch import LaunchConfig, command, device_count, environment, require_devices
from stages.runtime.section import read_section
from stages.train.params import TrainParams

WORKER = "stages.train.worker"
"""The module that each process of a training runs."""

RESTARTS = "PARROTFLOW_RESTARTS"
GRACE = "PARROTFLOW_GRACE_SECONDS"
SECTION = "PARROTFLOW_TRAIN_SECTION"
LAUNCH_SETTINGS = "PARROTFLOW_LAUNCH_SETTINGS"

TOKENS_AT_ONCE = 2**24
"""Token ids in memory while a store is read through."""

RECORDED = {"compute_environment", "distributed_type", "num_machines", "num_processes", "use_cpu"}
RECORDED |= {"fsdp_config", "parallelism_config", "enable_cpu_affinity"}
"""Keys of an accelerate config that go on record: none with addresses, and none that has no effect."""

AFTER_FAILURE_SECONDS = 20.0
"""How long workers may take to end after the first that failed: on GPUs they may wait for it in an exchange until the
process group's timeout (`parallel.PROCESS_GROUP`)."""


class Stop(threading.Event):
    """Set by SIGTERM or SIGINT; `on_stop` is then called."""

    def __init__(self) -> None:
        super().__init__()
        self.on_stop: Callable[[], None] = lambda: None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.set()
        self.on_stop()


def launch(config: LaunchConfig, params: TrainParams) -> int:
    """Run the workers to their end and return the exit code for this command.

    0; 75 after a stop that saved everything; 143 after one that did not. Raises UserError where workers keep dying.
    """
    stop = Stop()
    restarts = restarts_allowed()
    for start in range(restarts + 1):
        if start:
            print(f"a worker died; starting again from the last checkpoint ({start} of {restarts})", flush=True)
        outcome, died_with = _run_workers(config, params, stop)
        if outcome is not None:
            return outcome
        if stop.is_set():
            print("stopped on request before the state was saved; the same command continues from the last checkpoint")
            return EXIT_TERMINATED
    times = f"{restarts + 1} times, lastly " if restarts else ""
    raise UserError(
        f"train: a worker died {times}with exit code {died_with}; its messages are above. "
        f"The last checkpoint is kept: the same command continues from it ({RESTARTS} sets how often by itself)"
    )


def restarts_allowed() -> int:
    """How often workers that died are started again. Raises UserError where the variable is not a number."""
    return whole_number(RESTARTS, 3, minimum=0)


def grace_seconds() -> float | None:
    """How long workers may take to save after SIGTERM; None: until something kills the command.

    Raises UserError where the variable is not a number of seconds.
    """
    given = os.environ.get(GRACE, "")
    try:
        seconds = float(given) if given else None
    except ValueError:
        seconds = -1.0
    if seconds is not None and not seconds >= 0:
        raise UserError(f"{GRACE}={given}: expected seconds, 0 or more")
    return seconds


def _run_workers(config: LaunchConfig, params: TrainParams, stop: Stop) -> tuple[int | None, int]:
    """The workers' own exit code, or None where they died; and the launcher's."""
    line = supervision.Supervision()
    values = environment(config) | pass_on(params, config) | {supervision.VARIABLE: str(line.folder)}
    try:
        # In its own session: a terminal's Ctrl-C reaches this command alone.
        process = subprocess.Popen(command(config, WORKER), env=values, start_new_session=True)
        stop.on_stop = line.ask_to_stop
        if stop.is_set():
            line.ask_to_stop()
        code = _wait(process, stop, line)
        if line.outcome() is None and not line.started() and not stop.is_set():
            raise UserError(f"{config.path}: accelerate could not start a worker by it; its messages are above")
        return line.outcome(), code
    finally:
        line.close()


def _wait(process: "subprocess.Popen[bytes]", stop: Stop, line: supervision.Supervision) -> int:
    """Wait for the launcher. Its whole session is killed some time after a worker has failed, or after a stop.

    After a stop it is killed when the grace is over, or at once before the first step: there is nothing to save, and a
    launcher or a worker may be waiting for another machine.
    """
    grace, stopped, failed = grace_seconds(), math.inf, math.inf
    while process.poll() is None:
        if line.outcome() not in (None, 0, EXIT_CONTINUE, EXIT_TERMINATED):
            failed = min(failed, time.monotonic())
        if time.monotonic() >= failed + AFTER_FAILURE_SECONDS:
            os.killpg(process.pid, signal.SIGKILL)
        if stop.is_set():
            stopped = min(stopped, time.monotonic())
            is_over = grace is not None and time.monotonic() >= stopped + grace
            if is_over or not line.can_be_asked():
                os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
    return process.returncode


def pass_on(params: TrainParams, config: LaunchConfig) -> dict[str, str]:
    """The environment variables that hand the section to workers, and what of the launch goes on record (as YAML)."""
    settings = yaml.safe_load(config.path.read_text(encoding="utf-8"))
    kept = {name: value for name, value in settings.items() if name in RECORDED}
    return {SECTION: params.model_dump_json(), LAUNCH_SETTINGS: yaml.safe_dump(kept)}


def section_of_command() -> TrainParams:
    """The section that the command read; from params.yaml where a worker was started without the command."""
    if given := os.environ.get(SECTION):
        return TrainParams.model_validate_json(given)
    return read_section("train", TrainParams)


def check_machine(config: LaunchConfig) -> None:
    """Raise UserError where this machine has too few GPUs for the launch, or something else on its port."""
    require_devices(config)
    if config.port is not None and is_port_in_use(config.port):
        raise UserError(
            f"{config.path}: main_process_port = {config.port} is in use on this machine; end what holds it "
            "(a run before this one?), or set another port on every machine"
        )


def note_idle_devices(config: LaunchConfig) -> Iterator[str]:
    """A line where GPUs of this machine have no process."""
    own, found = config.processes // config.machines, device_count()
    if not config.on_cpu and own < found:
        yield (
            f"note: {found - own} of {found} GPUs of this machine stay idle: {config.path} starts {own} process"
            f"{'es' if own > 1 else ''} here; for all of them copy deploy/launch/ddp.yaml (or fsdp2.yaml), set "
            f"num_processes: {found} and name it by PARROTFLOW_LAUNCH"
        )


def check_batch(params: TrainParams, config: LaunchConfig) -> None:
    """Raise UserError where the global batch cannot be divided evenly, or the deterministic sum has no full tree."""
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
    """Raise UserError where a split is corrupt, of another tokenizer, or shorter than one sequence."""
    store.verify()
    if file_sha256(tokenizer / "tokenizer.json") != store.manifest.tokenizer_sha256:
        raise UserError(f"{store.folder}: made with another tokenizer than {tokenizer}; run `dvc repro tokenize`")
    tokens = store.manifest.tokens
    spans = ((start, min(start + TOKENS_AT_ONCE, tokens)) for start in range(0, tokens, TOKENS_AT_ONCE))
    largest = max((int(store.read(start, stop).max()) for start, stop in spans), default=-1)
    if largest >= store.manifest.vocab_size:
        raise UserError(
            f"{store.folder}: holds the token id {largest}, the vocabulary has {store.manifest.vocab_size} entries; "
            "run `dvc repro -f tokenize`"
        )
    if tokens < params.sequence_length:
        raise UserError(
            f"{store.folder}: {tokens} tokens are fewer than one sequence "
            f"(train.sequence_length = {params.sequence_length}); lower it, collect more documents"
            f"{' or raise clean.split.validation_share' if store.folder.name == VALIDATION else ''}"
        )


def note_dropout(params: TrainParams, config: PreTrainedConfig) -> Iterator[str]:
    """A line where dropout makes the result depend on how the run is launched."""
    names = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout", "dropout")
    used = [name for name in names if getattr(config, name, 0)]
    if used and params.deterministic_micro_batch_size is None:
        yield (
            f"note: train.model.{used[0]} > 0: dropout masks depend on the size of micro-batches, so other hardware "
            "gives another result; train.deterministic_micro_batch_size fixes them"
        )


def note_padded_vocabulary(source: Path, vocabulary_size: int) -> Iterator[str]:
    """A line where the model in `source` has rows that are cut off: they are padding, or the tokenizer is another."""
    # A config that cannot be read is refused when it is loaded.
    with suppress(OSError, ValueError, AttributeError, TypeError):
        rows = json.loads((source / "config.json").read_bytes()).get("vocab_size") or 0
        if rows > vocabulary_size:
            yield (
                f"note: train.start_from: its vocabulary is cut from {rows} entries to the tokenizer's "
                f"{vocabulary_size}: right if the tokenizer is the model's own (tokenizer.kind: existing)"
            )
