"""Starts the workers by `accelerate launch`, with the user's own configuration or one of `launch/`.

`PARROTFLOW_LAUNCH` names a file in `launch/` (without its ending) or any accelerate config file. Unset, the user's own
`accelerate config` counts where there is one, else `launch/one_gpu` or `launch/cpu` by what the machine has. Workers
that die are started again, `PARROTFLOW_RESTARTS` times (3 if unset), and go on from the last checkpoint. How a run is
launched is never part of what it computes.
"""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import yaml
from accelerate.commands.config.config_args import default_json_config_file, default_yaml_config_file

from stages.runtime.entry import UserError
from stages.train.launch import supervision

VARIABLE = "PARROTFLOW_LAUNCH"
RESTARTS = "PARROTFLOW_RESTARTS"
PRESETS = Path("launch")

KEEP_MEMORY = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296"
"""What a step frees serves the next one, in huge pages, instead of going back to the kernel, which hands it out again
zeroed, page by page: on 2 cores a quarter of a step's time for the default model, an eighth for a GPT-2 of 124M
(glibc's manual, "Memory Allocation Tunables")."""

EXIT_CONTINUE = 75
"""Asked to stop (SIGTERM): the same command goes on from the checkpoint (EX_TEMPFAIL of sysexits.h)."""


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


class Stop(threading.Event):
    """Set by SIGTERM or SIGINT; the signal goes on to the launcher and to all it started."""

    def __init__(self) -> None:
        super().__init__()
        self.process: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.set()
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)


def launch(config: LaunchConfig) -> int:
    """Run the workers to their end and return the exit code for this command: 0, or 75 to be run again."""
    stop = Stop()
    restarts = restarts_allowed()
    for start in range(restarts + 1):
        if start:
            print(f"a worker died; starting again from the last checkpoint ({start} of {restarts})", flush=True)
        outcome, died_with = _run_workers(config, stop)
        if outcome is not None:
            return outcome
        if stop.is_set():
            return EXIT_CONTINUE
    times = f"{restarts + 1} times, lastly " if restarts else ""
    raise UserError(
        f"train: a worker died {times}with exit code {died_with}; its messages are above. "
        f"The last checkpoint is kept: the same command goes on from it ({RESTARTS} sets how often by itself)"
    )


def restarts_allowed() -> int:
    """How often workers that died are started again. Raises UserError where the variable holds no such number."""
    given = os.environ.get(RESTARTS) or "3"
    if not given.isdecimal():
        raise UserError(f"{RESTARTS}={given}: expected how often workers that died are started again, 0 or more")
    return int(given)


def _run_workers(config: LaunchConfig, stop: Stop) -> tuple[int | None, int]:
    line = supervision.Supervision()
    values = environment(config) | {supervision.VARIABLE: str(line.folder)}
    try:
        # In its own session, so that a signal reaches the launcher once, from here, with all that it started.
        stop.process = subprocess.Popen(command(config), env=values, start_new_session=True)
        code = stop.process.wait()
        _wait_for_outcome(line, stop)
        return line.outcome(), code
    finally:
        line.close()


def _wait_for_outcome(line: supervision.Supervision, stop: Stop) -> None:
    """accelerate's launcher dies of a SIGTERM at once, while its worker still saves: give it the time to."""
    waiting = threading.Event()
    for _ in range(300):
        if not stop.is_set() or line.outcome() is not None or not line.has_workers():
            return
        waiting.wait(0.1)


def command(config: LaunchConfig) -> list[str]:
    """The command line that starts the workers."""
    result = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config.path), "--quiet"]
    if config.on_cpu and config.processes > 1:
        # accelerate starts several CPU processes only when told that they are several GPUs.
        result += [] if config.sharded else ["--multi_gpu"]
        if config.machines == 1:
            result += ["--main_process_port", "0"]
    return [*result, "-m", "stages.train.worker"]


def environment(config: LaunchConfig) -> dict[str, str]:
    """The workers' environment. accelerate starts several CPU processes only with this variable set."""
    values = dict(os.environ)
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
    sharded = settings.get("distributed_type") == "FSDP"
    leads = machines > 1 and not settings.get("machine_rank")
    port = settings.get("main_process_port") if leads else None
    return LaunchConfig(path, processes, machines, bool(settings.get("use_cpu")), sharded, port)


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
