"""Scores sets in this process, or shares their batches among the processes that the launch configuration asks for.

Batches are the same for any number of processes, and their losses are put back in the batches' order, so the result is
the same to the bit. Workers write files instead of forming a process group: they do not communicate.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from stages.evaluate.likelihood.score import Losses, Plan, score_batches
from stages.evaluate.likelihood.tokens import Tokens
from stages.evaluate.likelihood.windows import WindowSizes
from stages.evaluate.model import open_model
from stages.runtime.entry import UserError
from stages.runtime.launch.config import LaunchConfig
from stages.runtime.launch.supervision import VARIABLE as SUPERVISION
from stages.runtime.launch.supervision import Supervision
from stages.runtime.launch.workers import command, environment

FOLDER_VARIABLE = "PARROTFLOW_EVALUATE_TASKS"
"""The folder with the tasks; set by the command for its workers."""

TASKS = "tasks.json"


@dataclass(frozen=True)
class Task:
    """A set to be scored by a model."""

    model: Path
    """The model's folder."""
    plan: Plan
    description: str
    """For the progress bar."""


def score_tasks(tasks: Sequence[Task], config: LaunchConfig) -> list[Losses]:
    """The losses of each task. Raises UserError where a worker died, SystemExit where one ended with a message."""
    processes = config.processes // config.machines  # other machines of a launch take no part
    if processes == 1:
        return list(score_share(tasks, 0, 1, on_cpu=config.on_cpu))
    with TemporaryDirectory(prefix="parrotflow-") as temporary:
        folder = Path(temporary)
        write_tasks(folder, tasks)
        print(f"scoring with {processes} processes by {config.path}", flush=True)
        run_workers(replace(config, processes=processes, machines=1, port=None), folder)
        return [gathered(folder, number, task.plan, processes) for number, task in enumerate(tasks)]


def score_share(tasks: Sequence[Task], rank: int, processes: int, on_cpu: bool) -> Iterator[Losses]:
    """One process's share of each task, in the order of the tasks. Each model is opened once."""
    for folder, group in groupby(tasks, lambda task: task.model):
        model = open_model(folder, device="cpu" if on_cpu else None)
        for task in group:
            yield score_batches(model, task.plan, rank, processes, task.description)


def run_workers(config: LaunchConfig, folder: Path) -> None:
    """Start the workers and wait for their end."""
    line = Supervision()
    values = environment(config) | {FOLDER_VARIABLE: str(folder), SUPERVISION: str(line.folder)}
    try:
        one_machine = ["--num_machines", "1", "--num_processes", str(config.processes), "--machine_rank", "0"]
        launched = command(config, "stages.evaluate.likelihood.worker", *one_machine)
        # In its own session: a terminal's Ctrl-C reaches this command alone, and the workers end with it.
        code = subprocess.run(launched, env=values, check=False, start_new_session=True).returncode
        outcome = line.outcome()
    finally:
        line.close()
    if outcome:
        sys.exit(outcome)  # the worker has said why
    if code:
        raise UserError(
            f"evaluate: a worker died with exit code {code}; its messages are above. {config.path} started it: "
            "PARROTFLOW_LAUNCH=cpu or one_gpu scores in one process"
        )


def write_tasks(folder: Path, tasks: Sequence[Task]) -> None:
    """Write what `read_tasks` reads."""
    entries = []
    for number, task in enumerate(tasks):
        plan = task.plan
        np.save(folder / f"{number}.ids.npy", plan.tokens.ids)
        np.save(folder / f"{number}.lengths.npy", plan.tokens.lengths)
        sizes = [plan.sizes.context_length, plan.sizes.stride]
        entries.append([str(task.model), task.description, plan.tokens.first_id, plan.batch_size, sizes])
    (folder / TASKS).write_text(json.dumps(entries), encoding="utf-8")


def read_tasks(folder: Path) -> list[Task]:
    """The tasks of the command that started this worker."""
    tasks = []
    for number, entry in enumerate(json.loads((folder / TASKS).read_text(encoding="utf-8"))):
        model, description, first_id, batch_size, sizes = entry
        ids = np.load(folder / f"{number}.ids.npy", mmap_mode="r")
        tokens = Tokens(ids, np.load(folder / f"{number}.lengths.npy"), first_id)
        tasks.append(Task(Path(model), Plan(tokens, WindowSizes(*sizes), batch_size), description))
    return tasks


def share_path(folder: Path, number: int, rank: int) -> Path:
    """Where a worker writes its share of a task."""
    return folder / f"{number}.losses.{rank}.npy"


def gathered(folder: Path, number: int, plan: Plan, processes: int) -> Losses:
    """The shares of all workers, merged in the order of the batches."""
    shares = [np.load(share_path(folder, number, rank)) for rank in range(processes)]
    losses = np.empty((len(plan.batches), shares[0].shape[1]))
    for rank, share in enumerate(shares):
        losses[rank::processes] = share
    return losses


def use_own_gpu(local_rank: int) -> None:
    """Each process takes the GPU of its local rank."""
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
