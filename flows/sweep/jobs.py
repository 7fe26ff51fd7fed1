"""The jobs of a sweep: one for the stages that several cells share, then one for each cell.

Stages with the same content key (keys.py) compute the same. What is shared is computed once, and the cells restore it
from DVC's cache. A job runs as a process of this machine (processes.py) or as a flow run on a work pool (pool.py).
"""

import hashlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from flows.run.outcome import StoppedError
from flows.run.terminal import LastingConsole

if TYPE_CHECKING:
    from flows.experiments.cells import Cell
    from flows.experiments.runs import Run, RunState
    from flows.sweep.run_cells import Batch

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Job:
    """Stages of one cell, brought up to date together."""

    key: str
    """Equal for equal work at the same commit, so that a later call finds the flow run that this one started."""
    cells: tuple[str, ...]
    """Ids of the cells that need it; it runs with the params.yaml of the first."""
    targets: tuple[str, ...]
    waits_for: tuple[str, ...] = ()
    """Keys of jobs whose results it restores."""
    shared: bool = False

    @property
    def folder(self) -> str:
        """The name of its clone on a worker."""
        return f"shared-{self.key[:8]}" if self.shared else self.cells[0]


@dataclass(frozen=True)
class Ended:
    """How a job ended. A cancelled job is not recorded, because it may succeed later."""

    state: "RunState"
    message: str = ""


class Work(Protocol):
    """A job at work."""

    def poll(self) -> Ended | None:
        """How it ended; None while it works."""

    def stop(self) -> None:
        """Ask for its end."""


def carry_out(
    jobs: Sequence[Job],
    start: Callable[[Job], Work | None],
    record: Callable[[Job, Ended], Ended],
    progress: "Progress",
) -> None:
    """Run each job after the jobs it depends on; if one of them fails, the job ends with the same result.

    `start` returns None if there is no room yet. `record` is called for each job that ended, and returns how it ended.
    Raises StoppedError after Ctrl-C, SIGTERM or a closed terminal, once everything has ended.
    """
    waiting, at_work, ended = list(jobs), list[tuple[Job, Work]](), dict[str, Ended]()
    with signals() as received:
        try:
            while waiting or at_work:
                for job in list(waiting):
                    before = [ended.get(key) for key in job.waits_for]
                    bad = next((one for one in before if one and one.state != "finished"), None)
                    if bad:
                        ended[job.key] = record(job, bad)
                        waiting.remove(job)
                    elif None not in before and (work := start(job)):
                        at_work.append((job, work))
                        waiting.remove(job)
                        progress.started(job)
                for job, work in list(at_work):
                    if found := work.poll():
                        at_work.remove((job, work))
                        progress.ended(job, found)
                        ended[job.key] = record(job, found)
                if received:
                    left = len({cell for job in [*waiting, *(job for job, _ in at_work)] for cell in job.cells})
                    raise StoppedError(f"{progress.title}: stopped; {left} cells are left, the same command continues")
                if at_work or waiting:
                    time.sleep(POLL_SECONDS)
        finally:
            left_over = [work for _, work in at_work]
            for work in left_over:
                work.stop()
            while left_over := [work for work in left_over if not work.poll()]:
                time.sleep(POLL_SECONDS)


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP, instead of ending by them. `nohup` ignores SIGHUP on purpose."""
    received: list[int] = []
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    wanted = (signal.SIGINT, signal.SIGTERM, *hangup)
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in wanted}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def jobs_of(batch: "Batch", keys: Mapping[str, Mapping[str, str]], commit: str) -> list[Job]:
    """The jobs of a batch's cells, in topological order. `keys` holds the keys of the cells' stages.

    The key of a cell's own job includes the cell's name, because the DVC experiment is named after it. Stages shared by
    the same cells form one job. Their upstream stages are shared by at least those cells, so a job waits only for jobs
    of larger groups.
    """
    users: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for cell in batch.cells:
        for name, content in keys[cell.id].items():
            users.setdefault(content, []).append(cell.id)
            names[content] = name
    groups: dict[tuple[str, ...], list[str]] = {}
    for content, cells in users.items():
        if len(cells) > 1:
            groups.setdefault(tuple(cells), []).append(content)
    jobs: list[Job] = []
    for sharing, group in sorted(groups.items(), key=lambda item: -len(item[0])):
        before = tuple(job.key for job in jobs if set(sharing) < set(job.cells))
        stages_here = tuple(names[content] for content in group)
        jobs.append(Job(_key(commit, sorted(group)), sharing, stages_here, before, shared=True))
    for cell in batch.cells:
        before = tuple(job.key for job in jobs if job.shared and cell.id in job.cells)
        own = _key(commit, [cell.name, *batch.targets])
        jobs.append(Job(own, (cell.id,), tuple(batch.targets), before))
    return jobs


def _key(commit: str, parts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([commit, *parts]).encode()).hexdigest()[:16]


class Progress(Bars):
    """Follows the jobs of a sweep: a bar for each in a terminal, and a line for each stage and cell."""

    def __init__(self, title: str, cells: Mapping[str, "Cell"]) -> None:
        self.title, self.cells, self.done = title, cells, 0
        console = LastingConsole(highlight=False, soft_wrap=not sys.stdout.isatty())
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._all = self.add_task(title, total=len(cells))
        self._bars: dict[str, TaskID] = {}
        self._stages: dict[str, str] = {}

    def say(self, job: Job, text: str, style: str | None = None) -> None:
        """Print a line of a job."""
        self.print(escape(f"{self._label(job)}: {text}"), style=style)

    def started(self, job: Job) -> None:
        """A job is at work."""
        self._bars[job.key] = self.add_task(escape(self._label(job)), total=None)

    def stage(self, job: Job, stage: str) -> None:
        """A job runs a stage, which DVC has not found in its cache."""
        self._stages[job.key] = stage
        self.say(job, f"{stage} started")
        self.counted(job, "")

    def counted(self, job: Job, text: str) -> None:
        """A stage has said how far it is."""
        shown = f"{self._label(job)}: {self._stages.get(job.key, '')} {text}"
        self.update(self._bars[job.key], description=escape(shown))

    def ended(self, job: Job, how: Ended) -> None:
        """A job has ended."""
        self.remove_task(self._bars.pop(job.key))
        if how.state != "finished":
            self.say(job, f"{how.state}: {how.message}", "red")

    def recorded(self, run: "Run") -> None:
        """A cell has ended, with a result or without one."""
        self.done += 1
        self.update(self._all, completed=self.done)
        name = f" as {run.experiment}" if run.experiment else ""
        if run.state == "finished":
            line = f"{self.done}/{len(self.cells)} {self.cells[run.cell].label}: finished{name}"
            self.print(escape(line), style="green")

    def _label(self, job: Job) -> str:
        return f"{len(job.cells)} cells" if job.shared else self.cells[job.cells[0]].label
