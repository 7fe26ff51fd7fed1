"""How workers are launched: by an Accelerate configuration. How a run is launched is never part of what it computes.

`PARROTFLOW_LAUNCH` names a preset of `deploy/launch/` or the path of any Accelerate config file. If it is unset, the
preset is `one_gpu` or `cpu`, depending on the machine.
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
"""Set by `stages.train.segment`, as `500,600,700`: the step to begin with, and those to save at, up to the last one."""

LAUNCH = "PARROTFLOW_LAUNCH"
PRESETS = Path("deploy/launch")

USED = {"compute_environment", "distributed_type", "num_machines", "num_processes", "machine_rank", "main_process_ip"}
USED |= {"main_process_port", "main_training_function", "rdzv_backend", "same_network", "gpu_ids", "use_cpu", "debug"}
USED |= {"fsdp_config.fsdp_version", "enable_cpu_affinity", "mpirun_config", "parallelism_config", "ipex_config"}
"""Keys of an accelerate config that count, or that change nothing here."""

REPLICAS, SHARDS = "parallelism_config_dp_replicate_size", "parallelism_config_dp_shard_size"

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
    unused: tuple[str, ...] = ()
    """Settings without effect."""
    replicas: int = 1
    """Copies of a sharded model (HSDP)."""

    @property
    def shards(self) -> int:
        """Processes that a model is sharded over; 1 if each process holds all of it."""
        return self.processes // self.replicas if self.sharded else 1

    @property
    def device_type(self) -> str:
        """`cpu` or `cuda`."""
        return "cpu" if self.on_cpu or not has_gpu() else "cuda"

    @property
    def notes(self) -> list[str]:
        """A line that names settings without effect."""
        names = ", ".join(self.unused)
        reason = "precision, compilation and sharding are set by params.yaml and PARROTFLOW_COMPILE"
        return [f"note: {self.path}: not used: {names} ({reason})"] if names else []


def launch_config() -> LaunchConfig:
    """The configuration to launch with. Raises UserError if a named one does not exist or is not a configuration."""
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
    if not isinstance(on_cpu, bool):  # accelerate reads YAML 1.1, in which `no` is one
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
    """The dotted names of settings that are not switched off."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}{key}.")
        elif str(value).lower() not in OFF:
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
    """Whether CUDA sees a device."""
    return torch.cuda.is_available()


def device_count() -> int:
    """How many GPUs torch finds in this machine."""
    return torch.cuda.device_count()


def require_devices(config: LaunchConfig) -> None:
    """Raise UserError if this machine has fewer GPUs than the launch has processes on it."""
    own, found = config.processes // config.machines, device_count()
    if own > 1 and not config.on_cpu and own > found:
        # Without any, accelerate would start them all the same, each as a run of its own.
        raise UserError(
            f"{config.path} needs {own} GPUs on this machine, one for each process, but torch finds {found}; "
            "copy the file and set num_processes, or use the preset cpu or one_gpu"
        )


ACCELERATE_LAUNCH = "accelerate.commands.launch"

KEEP_MEMORY = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296"
"""What a step frees serves the next one, in huge pages, instead of going back to the kernel, which hands it out again
zeroed, page by page: on 2 cores a quarter of a step's time for a GPT-2 of 4.3M, an eighth for one of 124M
(glibc's manual, "Memory Allocation Tunables")."""

IGNORING_SIGTERM = ("/bin/sh", "-c", 'trap "" TERM; exec "$@"', "launch")
"""A scheduler may signal every process of a job, as Slurm does. A launcher that obeys takes its workers along, some at
once, torchrun after 30 s. So it ignores the signal; the workers handle it, and save."""


def command(config: LaunchConfig, module: str, *options: str) -> list[str]:
    """The command line that starts `python -m module` in each worker; `options` take precedence over the file."""
    result = [*IGNORING_SIGTERM, sys.executable, "-m", ACCELERATE_LAUNCH]
    result += ["--config_file", str(config.path), "--quiet"]
    # The loop sets both itself; accelerate would obey the file's in some launches and not in others.
    result += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    if config.on_cpu and config.processes > 1:
        # accelerate starts several CPU processes only when told that they are several GPUs.
        result += [] if config.sharded else ["--multi_gpu"]
        if config.machines == 1:
            result += ["--main_process_port", "0"]
    return [*result, *options, "-m", module]


OF_OTHER_LAUNCHERS = re.compile(
    "(WORLD_SIZE|RANK|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|CROSS_RANK|MASTER_ADDR|MASTER_PORT)|"
    "(GROUP|ROLE)_(RANK|NAME|WORLD_SIZE)|"
    "(ACCELERATE|FSDP|PARALLELISM_CONFIG|TORCHELASTIC|PMI|PMIX|MPI|OMPI_COMM_WORLD|MV2_COMM_WORLD)_.*"
)
"""Variables by which a launcher describes a process group. A shell that Slurm, MPI or accelerate left behind has them
too, and a worker that reads them waits for processes that are never started."""


def environment(config: LaunchConfig) -> dict[str, str]:
    """Return the workers' environment.

    The config file alone says which processes there are. Several machines keep the variables of their launcher.
    """
    alone = config.machines == 1
    values = {name: value for name, value in os.environ.items() if not (alone and OF_OTHER_LAUNCHERS.fullmatch(name))}
    # torchrun would handle SIGTERM although it is started ignoring it (torch/distributed/run.py).
    values.setdefault("PET_SIGNALS_TO_HANDLE", "SIGINT")
    if config.device_type == "cpu":
        values["ACCELERATE_USE_CPU"] = "true"  # without it accelerate does not start several CPU processes
        values.setdefault("GLIBC_TUNABLES", KEEP_MEMORY)
        # Threads that spin for a moment and then sleep: as fast as spinning on, but not at a standstill where anything
        # else runs on the same cores. The count is GNU's (about 0.1 ms); other OpenMP runtimes know the policy alone.
        values.setdefault("OMP_WAIT_POLICY", "passive")
        values.setdefault("GOMP_SPINCOUNT", "3000")
        # Threads of two processes on the same cores would wait for each other.
        own = max(1, torch.get_num_threads() * config.machines // config.processes)
        values.setdefault("OMP_NUM_THREADS", str(own))
    else:
        # Segments that grow: what batches of other sizes and evaluation leave free does not lie about in pieces.
        values.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    return values
