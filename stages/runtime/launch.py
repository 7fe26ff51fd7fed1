"""Launches workers with an Accelerate config. The launch is never part of what a run computes.

`PARROTFLOW_LAUNCH` is a preset in `deploy/launch/` or the path of an Accelerate config file. If it is unset, the preset
is `one_gpu` or `cpu`, depending on the machine.
"""

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ruamel.yaml.error import YAMLError

from stages.runtime.errors import UserError
from stages.runtime.section import read_yaml

SEGMENT = "PARROTFLOW_SEGMENT"
"""Set by `stages.train.segment`, e.g. `500,600,700`: the step to start from, then the steps to save at."""

LAUNCH = "PARROTFLOW_LAUNCH"
PRESETS = Path("deploy/launch")

USED = {"compute_environment", "distributed_type", "num_machines", "num_processes", "machine_rank", "main_process_ip"}
USED |= {"main_process_port", "main_training_function", "rdzv_backend", "same_network", "gpu_ids", "use_cpu", "debug"}
USED |= {"fsdp_config.fsdp_version", "enable_cpu_affinity", "mpirun_config", "parallelism_config", "ipex_config"}
"""Keys of an accelerate config that are used, or that change nothing here."""

REPLICAS, SHARDS = "parallelism_config_dp_replicate_size", "parallelism_config_dp_shard_size"

KINDS = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP")


@dataclass(frozen=True)
class LaunchConfig:
    """The settings read from an accelerate config file."""

    path: Path
    processes: int
    """On all machines together."""
    machines: int
    on_cpu: bool
    sharded: bool
    """FSDP."""
    unused: tuple[str, ...] = ()
    """Settings without effect."""
    replicas: int = 1
    """Copies of a sharded model (HSDP)."""

    @property
    def shards(self) -> int:
        """The number of processes over which a model is sharded; 1 if each has all of it."""
        return self.processes // self.replicas if self.sharded else 1

    @property
    def device_type(self) -> str:
        """`cpu` or `cuda`."""
        return "cpu" if self.on_cpu or not has_gpu() else "cuda"

    @property
    def notes(self) -> list[str]:
        """A note that names settings without effect, if there are any."""
        names = ", ".join(self.unused)
        reason = "precision, compilation and sharding are set by params.yaml and PARROTFLOW_COMPILE"
        return [f"note: {self.path}: not used: {names} ({reason})"] if names else []


def launch_config() -> LaunchConfig:
    """Read the config to launch with. Raises UserError if it does not exist or is not supported."""
    path = _config_path()
    try:
        settings: Any = read_yaml(path.read_bytes())
        processes, machines = int(settings.get("num_processes") or 1), int(settings.get("num_machines") or 1)
        replicas, shards = (
            int((settings.get("parallelism_config") or {}).get(name) or 1) for name in (REPLICAS, SHARDS)
        )
    except (YAMLError, AttributeError, TypeError, ValueError):
        raise UserError(f"{path}: not an accelerate config; `accelerate config` writes one") from None
    kind = str(settings.get("distributed_type", "NO"))
    if kind not in KINDS:
        raise UserError(f"{path}: distributed_type = {kind} is not supported; use one of {', '.join(KINDS)}")
    on_cpu = settings.get("use_cpu") or False
    if not isinstance(on_cpu, bool):  # accelerate reads YAML 1.1, in which `no` is a boolean
        raise UserError(f"{path}: use_cpu = {on_cpu}: write true or false")
    sharded = kind == "FSDP"
    if sharded and str((settings.get("fsdp_config") or {}).get("fsdp_version", 1)) != "2":
        raise UserError(
            f"{path}: FSDP 1 is not supported; set fsdp_version: 2 under fsdp_config (see deploy/launch/fsdp2.yaml)"
        )
    if replicas > 1 and sharded and (shards < 2 or replicas * shards != processes):
        raise UserError(
            f"{path}: {REPLICAS} = {replicas} and {SHARDS} = {shards}: their product must be num_processes = "
            f"{processes}, and the second above 1 (see deploy/launch/fsdp2_multi_node.yaml)"
        )
    unused = tuple(name for name in _names(settings) if name not in USED and name.split(".")[0] not in USED)
    return LaunchConfig(path, processes, machines, on_cpu, sharded, unused, replicas)


def _names(settings: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of settings that are not off."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}{key}.")
        elif str(value).lower() not in ("no", "false", "none", ""):
            yield f"{prefix}{key}"


def _config_path() -> Path:
    if name := os.environ.get(LAUNCH):
        for path in (PRESETS / f"{name}.yaml", Path(name)):
            if path.is_file():
                return path
        presets = ", ".join(sorted(path.stem for path in PRESETS.glob("*.yaml")))
        raise UserError(f"{LAUNCH}={name}: neither a file nor a preset ({presets})")
    return PRESETS / ("one_gpu.yaml" if has_gpu() else "cpu.yaml")


def has_gpu() -> bool:
    """True if CUDA sees a device."""
    return torch.cuda.is_available()


def device_count() -> int:
    """The number of GPUs that torch finds in this machine."""
    return torch.cuda.device_count()


def require_devices(config: LaunchConfig) -> None:
    """Raise UserError if this machine has fewer GPUs than the launch has processes on it."""
    processes, gpus = config.processes // config.machines, device_count()
    if processes > 1 and not config.on_cpu and processes > gpus:
        # Without GPUs accelerate would start the processes anyway, each as a separate run.
        raise UserError(
            f"{config.path} needs {processes} GPUs on this machine, one for each process, but torch finds {gpus}; "
            "copy the file and set num_processes, or use the preset cpu or one_gpu"
        )


ACCELERATE_LAUNCH = "accelerate.commands.launch"

KEEP_MEMORY = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296"
"""Keep freed memory, in huge pages, for the next step. Otherwise the kernel takes it back and zeroes it page by page,
which takes, on 2 cores, a quarter of a step for a GPT-2 of 4.3M and an eighth for one of 124M (glibc's manual, "Memory
Allocation Tunables")."""

IGNORING_SIGTERM = ("/bin/sh", "-c", 'trap "" TERM; exec "$@"', "launch")
"""Makes the launcher ignore SIGTERM, which a scheduler such as Slurm may send to every process of a job. The launcher
would kill its workers, at once or (torchrun) after 30 s. The workers handle the signal themselves, and save."""


def command(config: LaunchConfig, module: str, *options: str) -> list[str]:
    """The command line that starts `python -m module` in each worker; `options` override the config file."""
    result = [*IGNORING_SIGTERM, sys.executable, "-m", ACCELERATE_LAUNCH]
    result += ["--config_file", str(config.path), "--quiet"]
    # The trainer sets both itself; accelerate would apply the file's settings only in some launches.
    result += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    if config.on_cpu and config.processes > 1:
        # accelerate starts several CPU processes only with this option.
        result += [] if config.sharded else ["--multi_gpu"]
        if config.machines == 1:
            result += ["--main_process_port", "0"]
    return [*result, *options, "-m", module]


OF_OTHER_LAUNCHERS = re.compile(
    "(WORLD_SIZE|RANK|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|CROSS_RANK|MASTER_ADDR|MASTER_PORT)|"
    "(GROUP|ROLE)_(RANK|NAME|WORLD_SIZE)|"
    "(ACCELERATE|FSDP|PARALLELISM_CONFIG|TORCHELASTIC|PMI|PMIX|MPI|OMPI_COMM_WORLD|MV2_COMM_WORLD)_.*"
)
"""Variables in which a launcher describes a process group. They may also be left over in a shell of Slurm, MPI or
accelerate, and would make a worker wait for processes that are never started."""


def environment(config: LaunchConfig) -> dict[str, str]:
    """The workers' environment. With several machines it keeps the variables of their launcher."""
    alone = config.machines == 1
    values = {name: value for name, value in os.environ.items() if not (alone and OF_OTHER_LAUNCHERS.fullmatch(name))}
    # Otherwise torchrun would handle SIGTERM in spite of `IGNORING_SIGTERM` (torch/distributed/run.py).
    values.setdefault("PET_SIGNALS_TO_HANDLE", "SIGINT")
    if config.device_type == "cpu":
        values["ACCELERATE_USE_CPU"] = "true"  # without it accelerate does not start several CPU processes
        values.setdefault("GLIBC_TUNABLES", KEEP_MEMORY)
        # Waiting threads spin for a moment and then sleep. This is as fast as spinning on, except on busy cores, where
        # spinning is very slow. GOMP_SPINCOUNT (about 0.1 ms) is GNU's; other OpenMP runtimes only know the policy.
        values.setdefault("OMP_WAIT_POLICY", "passive")
        values.setdefault("GOMP_SPINCOUNT", "3000")
        # The processes share the cores.
        threads = max(1, torch.get_num_threads() * config.machines // config.processes)
        values.setdefault("OMP_NUM_THREADS", str(threads))
    else:
        # Segments that grow avoid fragmentation by batches of other sizes and by evaluation.
        values.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    return values
