"""Run the cells of a sweep on this machine: a job is `dvc repro` in a clone, with a share of the GPUs or cores."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from flows.dvc_repo import project_cache
from flows.experiments.cells import Cell
from flows.experiments.record import Run
from flows.run.chain import Log
from flows.run.dvc_process import start_fork_server
from flows.run.outcome import StageOutcome
from flows.run.server import Server
from flows.sweep import clone
from flows.sweep.jobs import Batch, BatchRun, Job, repro_in_clone

VISIBLE = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"

_GPU = re.compile(r"\d+|(GPU|MIG)-.+")


@dataclass
class OnThisMachine(BatchRun):
    """Runs jobs in clones of the project."""

    environment: dict[str, str]
    """The environment variables of stages."""
    shares: list[dict[str, str]]
    """The environment variables that give each concurrent job its share of this machine."""

    async def work(self, job: Job, log: Log) -> StageOutcome:
        """Run a job in the clone of its first cell."""
        name, folder, share = job.name(self.cells), self.clones[job.cells[0]], self.shares.pop()
        try:
            return await repro_in_clone(name, job.targets, folder, self.environment | share, self.terminal, log)
        finally:
            self.shares.append(share)

    def collect(self, cell: Cell) -> tuple[str, Mapping[str, str]]:
        """Make a DVC experiment from the cell's clone."""
        texts = clone.read_texts(self.clones[cell.id], self.batch.files)
        return clone.save_experiment(self.clones[cell.id], cell.name, self.batch.targets), texts


def run_cells_here(
    batch: Batch,
    head: str,
    keys: Mapping[str, Mapping[str, str]],
    environment: dict[str, str],
    server: Server,
    at_once: int,
) -> dict[str, Run]:
    """Run cells at the commit `head`, and record each as soon as it ends; return their runs, by cell id.

    `keys` are the keys of the cells' stages, `environment` has the variables of stages. `at_once` cells run at a time,
    each with a share of the GPUs, or of the cores if there is no GPU. The clone of a failed cell stays.

    Raises UserError before anything runs, StoppedByUserError after Ctrl-C or a cancellation.
    """
    start_fork_server()
    cache, folders = project_cache(), {}
    for number, cell in enumerate(batch.cells, start=1):
        print(f"sweep {batch.name}: clone {number} of {len(batch.cells)}: {cell.label}", flush=True)
        folders[cell.id] = clone.prepare_clone(cell, head, clone.CLONES / cell.id, cache=cache)
    shares = shares_of(at_once, gpus(), cores())
    here = OnThisMachine(batch, head, keys, folders, environment, shares)
    return here.run(server, at_once, retries=batch.facts.retries)


def shares_of(at_once: int, devices: list[str], cores: int) -> list[dict[str, str]]:
    """Return the environment variables that give each concurrent job its share; empty for a single job."""
    if at_once == 1:
        return [{}]
    if not devices:
        return [{THREADS: str(max(1, cores // at_once))} for _ in range(at_once)]
    each = max(1, len(devices) // at_once)
    starts = [number * each % len(devices) for number in range(at_once)]
    return [{VISIBLE: ",".join(devices[start : start + each])} for start in starts]


def cores() -> int:
    """Return the number of cores for jobs: all that this process may use, or fewer if OMP_NUM_THREADS is set."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # OpenMP also takes a list: a number for each level of nesting.
    limit = os.environ.get(THREADS, "").partition(",")[0].strip()
    return min(usable, int(limit)) if limit.isdecimal() and int(limit) else usable


def gpus() -> list[str]:
    """Return CUDA's names of the GPUs that this process may use, without importing torch, which takes seconds.

    As in CUDA, the list ends at the first invalid name: `-1` or an empty value means no GPU.
    """
    if VISIBLE in os.environ:
        return list(takewhile(_GPU.fullmatch, map(str.strip, os.environ[VISIBLE].split(","))))
    return [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]
