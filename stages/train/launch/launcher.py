"""Starts the workers by `accelerate launch`, with the user's own configuration or one of `launch/`.

`PARROTFLOW_LAUNCH` names a file in `launch/` (without its ending) or any accelerate config file. Unset, the user's own
`accelerate config` is used if there is one, else `launch/one_gpu` or `launch/cpu` by what the machine has. Workers
that die are started again, `PARROTFLOW_RESTARTS` times (3 if unset), and continue from the last checkpoint. How a
run is launched is never part of what it computes.
"""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import yaml
from accelerate.commands.config.config_args import default_json_config_file, default_yaml_config_file

from stages.runtime.entry import EXIT_TERMINATED, UserError
from stages.runtime.environment import whole_number
from stages.train.launch import supervision
from stages.train.launch.section import pass_on
from stages.train.params import TrainParams

VARIABLE = "PARROTFLOW_LAUNCH"
RESTARTS = "PARROTFLOW_RESTARTS"
GRACE = "PARROTFLOW_GRACE_SECONDS"
PRESETS = Path("launch")

KEEP_MEMORY = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296"
"""What a step frees serves the next one, in huge pages, instead of going back to the kernel, which hands it out again
zeroed, page by page: on 2 cores a quarter of a step's time for the default model, an eighth for a GPT-2 of 124M
(glibc's manual, "Memory Allocation Tunables")."""

IGNORING_SIGTERM = ("sh", "-c", 'trap "" TERM; exec "$@"', "launch")
"""A scheduler may signal every process of a job, as Slurm does. A launcher that obeys takes its workers along, some at
once, torchrun after 30 s. So it ignores the signal; the workers handle it, and save."""

USED = {"compute_environment", "distributed_type", "num_machines", "num_processes", "machine_rank", "main_process_ip"}
USED |= {"main_process_port", "main_training_function", "rdzv_backend", "same_network", "gpu_ids", "use_cpu", "debug"}
USED |= {"fsdp_config.fsdp_version", "enable_cpu_affinity", "mpirun_config", "parallelism_config", "ipex_config"}
"""Keys of an accelerate config that count, or that change nothing here."""

KINDS = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP")

OFF = ("no", "false", "none", "")


@dataclass(frozen=True)
class LaunchConfig:
    """An accelerate config file, and what of it matters here."""

    path: Path
    processes: int
    """Over all machines."""
    machines: int
    on_cpu: bool
    sharded: bool
    """FSDP."""
    port: int | None = None
    """On which this machine waits for the others; None where it is alone or joins another."""
    unused: tuple[str, ...] = ()
    """Settings in the file that have no effect."""

    @property
    def device_type(self) -> str:
        """Where the workers compute: cpu, cuda, ..."""
        found = None if self.on_cpu else torch.accelerator.current_accelerator()
        return "cpu" if found is None else found.type

    @property
    def notes(self) -> list[str]:
        """A line that names settings without effect."""
        names = ", ".join(self.unused)
        reason = "precision, compilation and sharding are set by params.yaml and PARROTFLOW_COMPILE"
        return [f"note: {self.path}: not used: {names} ({reason})"] if names else []


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
    values = environment(config) | pass_on(params) | {supervision.VARIABLE: str(line.folder)}
    try:
        # In its own session: a terminal's Ctrl-C reaches this command alone.
        process = subprocess.Popen(command(config), env=values, start_new_session=True)
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
    """Wait for the launcher. After a stop its whole session is killed when the grace is over.

    Or at once where no worker has begun: there is nothing to save, and a launcher waits for minutes for other machines.
    """
    grace, stopped = grace_seconds(), math.inf
    while process.poll() is None:
        if stop.is_set():
            stopped = min(stopped, time.monotonic())
            is_over = grace is not None and time.monotonic() >= stopped + grace
            if is_over or not line.started():
                os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
    return process.returncode


def command(config: LaunchConfig) -> list[str]:
    """The command line that starts the workers."""
    result = [
        *IGNORING_SIGTERM,
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        str(config.path),
        "--quiet",
    ]
    # The loop sets both itself; accelerate would obey the file's in some launches and not in others.
    result += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    if config.on_cpu and config.processes > 1:
        # accelerate starts several CPU processes only when told that they are several GPUs.
        result += [] if config.sharded else ["--multi_gpu"]
        if config.machines == 1:
            result += ["--main_process_port", "0"]
    return [*result, "-m", "stages.train.worker"]


def environment(config: LaunchConfig) -> dict[str, str]:
    """The workers' environment. accelerate starts several CPU processes only with this variable set."""
    values = dict(os.environ)
    # torchrun would handle SIGTERM although it is started ignoring it (torch/distributed/run.py).
    values.setdefault("PET_SIGNALS_TO_HANDLE", "SIGINT")
    if config.on_cpu:
        values["ACCELERATE_USE_CPU"] = "true"
        values.setdefault("GLIBC_TUNABLES", KEEP_MEMORY)
        # Threads that spin for a moment and then sleep: as fast as spinning on, but not at a standstill where anything
        # else runs on the same cores. The count is GNU's (about 0.1 ms); other OpenMP runtimes know the policy alone.
        values.setdefault("OMP_WAIT_POLICY", "passive")
        values.setdefault("GOMP_SPINCOUNT", "3000")
        # Threads of two processes on the same cores would wait for each other.
        own = max(1, torch.get_num_threads() * config.machines // config.processes)
        values.setdefault("OMP_NUM_THREADS", str(own))
    return values


def launch_config() -> LaunchConfig:
    """The configuration to launch with. Raises UserError where a named one does not exist or is none."""
    path = _config_path()
    try:
        settings: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        processes, machines = int(settings.get("num_processes") or 1), int(settings.get("num_machines") or 1)
    except (yaml.YAMLError, AttributeError, TypeError, ValueError):
        raise UserError(f"{path}: not an accelerate config; `accelerate config` writes one") from None
    kind = str(settings.get("distributed_type", "NO"))
    if kind not in KINDS:
        raise UserError(f"{path}: distributed_type = {kind} is not supported; use one of {', '.join(KINDS)}")
    sharded = kind == "FSDP"
    if sharded and str((settings.get("fsdp_config") or {}).get("fsdp_version", 1)) != "2":
        raise UserError(
            f"{path}: FSDP 1 is not supported; set fsdp_version: 2 under fsdp_config (see launch/fsdp2.yaml)"
        )
    leads = machines > 1 and not settings.get("machine_rank")
    port = settings.get("main_process_port") if leads else None
    unused = tuple(name for name in _names(settings) if name not in USED and name.split(".")[0] not in USED)
    return LaunchConfig(path, processes, machines, bool(settings.get("use_cpu")), sharded, port, unused)


def _names(settings: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of settings that are not switched off."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}{key}.")
        elif str(value).lower() not in OFF:
            yield f"{prefix}{key}"


def _config_path() -> Path:
    if name := os.environ.get(VARIABLE):
        for path in (PRESETS / f"{name}.yaml", Path(name)):
            if path.is_file():
                return path
        presets = ", ".join(sorted(path.stem for path in PRESETS.glob("*.yaml")))
        raise UserError(f"{VARIABLE}={name}: no such file, and no preset (there are {presets})")
    for path in (Path(default_yaml_config_file), Path(default_json_config_file)):
        if path.is_file():
            return path
    return PRESETS / ("one_gpu.yaml" if has_gpu() else "cpu.yaml")


def has_gpu() -> bool:
    """Whether CUDA sees a device."""
    return torch.cuda.is_available()


def device_count() -> int:
    """How many GPUs or other accelerators torch finds in this machine."""
    return torch.accelerator.device_count()
