"""The command and the environment that start workers by `accelerate launch`."""

import os
import sys

import torch

from stages.runtime.launch import agent
from stages.runtime.launch.config import LaunchConfig

KEEP_MEMORY = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296"
"""What a step frees serves the next one, in huge pages, instead of going back to the kernel, which hands it out again
zeroed, page by page: on 2 cores a quarter of a step's time for a GPT-2 of 4.3M, an eighth for one of 124M
(glibc's manual, "Memory Allocation Tunables")."""

IGNORING_SIGTERM = ("/bin/sh", "-c", 'trap "" TERM; exec "$@"', "launch")
"""A scheduler may signal every process of a job, as Slurm does. A launcher that obeys takes its workers along, some at
once, torchrun after 30 s. So it ignores the signal; the workers handle it, and save."""


def command(config: LaunchConfig, module: str, *options: str) -> list[str]:
    """The command line that starts `python -m module` in each worker; `options` take precedence over the file."""
    result = [*IGNORING_SIGTERM, sys.executable, "-m", agent.__name__]
    result += ["--config_file", str(config.path), "--quiet"]
    # The loop sets both itself; accelerate would obey the file's in some launches and not in others.
    result += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    if config.on_cpu and config.processes > 1:
        # accelerate starts several CPU processes only when told that they are several GPUs.
        result += [] if config.sharded else ["--multi_gpu"]
        if config.machines == 1:
            result += ["--main_process_port", "0"]
    return [*result, *options, "-m", module]


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
