"""The command and the environment that start workers by `accelerate launch`.

`python -m stages.runtime.launch.workers` is `accelerate launch`, silent where another machine has left torchrun's exit
barrier first. The barrier's store lives in the main machine's agent. The last machine to arrive lets that agent go, and
then reads the store once more, which may be gone by then (torch 2.13, torch/distributed/elastic/utils/store.py,
`barrier`). All workers have ended and nothing is lost, but torchrun logs a traceback.
"""

import gc
import logging
import os
import sys

import torch

from stages.runtime.launch.config import LaunchConfig

ACCELERATE_LAUNCH = "stages.runtime.launch.workers"
"""This module."""

AGENT_LOGGER = "torch.distributed.elastic.agent.server.api"
BARRIER_MESSAGE = "Error waiting on exit barrier"

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
    else:
        # Segments that grow: what batches of other sizes and evaluation leave free does not lie about in pieces.
        values.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    return values


def main() -> None:
    """Run `accelerate launch` with the arguments of this command."""
    from accelerate.commands.launch import main as accelerate_launch

    gc.enable()  # see `stages/__init__.py`
    logging.getLogger(AGENT_LOGGER).addFilter(is_not_the_store_of_a_barrier_that_was_left)
    accelerate_launch()


def is_not_the_store_of_a_barrier_that_was_left(record: logging.LogRecord) -> bool:
    """Whether a record of torchrun's agent is to be shown."""
    from torch.distributed import DistNetworkError

    gone = record.exc_info is not None and isinstance(record.exc_info[1], DistNetworkError)
    return not (gone and record.msg.startswith(BARRIER_MESSAGE))


if __name__ == "__main__":
    main()
