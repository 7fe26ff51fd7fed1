"""The jobs of a sweep: jobs for the stages that several cells share, then a job for each cell.

Stages with equal content keys (keys.py) compute the same results. Shared stages run once, and the cells restore their
results from DVC's cache. A job is a node of the sweep's chain: `dvc repro` in a clone here, or a flow run on a work
pool.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.environment import dvc_state_within
from flows.experiments.record import Run, RunState, append_run, reports_and_curves
from flows.run.dvc_process import run_repro
from flows.run.outcome import RunResult, StageOutcome, StoppedByUserError, run_result, with_stage_name
from flows.run.programs import redactor, shown_lines
from flows.run.terminal import NodeRow, Terminal
from flows.sweep.clone import CLONES, discard
from stages.runtime.errors import EXIT_UNAVAILABLE, UserError

if TYPE_CHECKING:
    from flows.experiments.cells import Cell
    from flows.run.chain import Log, Node
    from flows.run.server import Server
    from flows.sweep.keys import TargetFacts


@dataclass(frozen=True)
class Batch:
    """Cells of an experiment to run, and the results to record."""

    name: str
    """The experiment's name."""
    cells: Sequence["Cell"]
    targets: Sequence[str]
    """The stages to bring up to date."""
    reports: Collection[str]
    """JSON files."""
    curves: Collection[str]
    """FILE:COLUMN."""
    facts: "TargetFacts"
    params: Mapping[str, Any]
    """The values of params.yaml, which the cells override."""
    record: Path

    @property
    def files(self) -> set[str]:
        """The files of the reports and curves."""
        return {*self.reports, *(location.partition(":")[0] for location in self.curves)}


@dataclass(frozen=True)
class Job:
    """Stages of one cell, brought up to date together."""

    key: str
    """Equal for equal work at the same commit, so that a later call finds this job's flow run."""
    cells: tuple[str, ...]
    """The ids of the cells that need it; it runs with the params.yaml of the first."""
    targets: tuple[str, ...]
    waits_for: tuple[str, ...] = ()
    """The keys of the jobs whose results it restores."""
    shared: bool = False

    @property
    def folder(self) -> str:
        """The name of its clone on a worker."""
        return f"shared-{self.key[:8]}" if self.shared else self.cells[0]

    def name(self, cells: Mapping[str, "Cell"]) -> str:
        """Its name for the user, different for every job."""
        label = cells[self.cells[0]].label
        return f"{self.targets[-1]} of {label} + {len(self.cells) - 1}" if self.shared else label


async def repro_in_clone(
    name: str,
    targets: Sequence[str],
    folder: Path,
    environment: dict[str, str],
    terminal: Terminal,
    log: "Log",
    *,
    pull: bool = False,
) -> StageOutcome:
    """Bring the targets up to date in a clone.

    The log gets all lines; the terminal shows the running stage, its progress, and warnings. With `pull`, missing
    results come from the DVC remote.
    """
    redact, running = redactor(), ""

    def on_stage(stage: str) -> None:
        nonlocal running
        running = stage
        terminal.lines(name, [f"{stage} started"])

    def on_lines(lines: list[str]) -> None:
        if texts := shown_lines(lines, redact):
            log(texts)
            if warnings := [text for text in texts if text.startswith("warning: ")]:
                terminal.lines(name, warnings)
            terminal.progress[name] = f"{running}: {texts[-1]}"

    environment = environment | dvc_state_within(folder)
    outcome = await run_repro(name, targets, folder, environment, on_lines, on_stage, pull=pull)
    message = with_stage_name(running, outcome.message) if running and outcome.message else outcome.message
    return replace(outcome, message=redact(message))


def jobs_of(batch: Batch, keys: Mapping[str, Mapping[str, str]], commit: str) -> list[Job]:
    """Return the jobs of a batch's cells, in topological order. `keys` are the keys of each cell's stages.

    The key of a job for a single cell includes the cell's name, which is also the name of its DVC experiment. Stages
    shared by the same cells form a job. At least these cells share the upstream stages, so a job waits only for jobs of
    larger groups.
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
        jobs.append(Job(_key(commit, [cell.name, *batch.targets]), (cell.id,), tuple(batch.targets), before))
    return jobs


def _key(commit: str, parts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([commit, *parts]).encode()).hexdigest()[:16]


@dataclass
class BatchRun(ABC):
    """The jobs of a batch at a commit, and the runs of the cells that have ended, by cell id."""

    batch: Batch
    head: str
    keys: Mapping[str, Mapping[str, str]]
    """The keys of each cell's stages."""
    clones: Mapping[str, Path]
    """The folders of cells in clones on this machine."""
    runs: dict[str, Run] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.cells = {cell.id: cell for cell in self.batch.cells}
        self.jobs = jobs_of(self.batch, self.keys, self.head)
        self.terminal = Terminal([NodeRow(job.name(self.cells)) for job in self.jobs])

    @abstractmethod
    async def work(self, job: Job, log: "Log") -> StageOutcome:
        """Do a job to its end."""

    @abstractmethod
    def collect(self, cell: "Cell") -> tuple[str, Mapping[str, str]]:
        """Get the DVC experiment of a successful cell; return its commit, and the texts of `batch.files`.

        Raises UserError on a failure that may go away.
        """

    def run(self, server: "Server", at_once: int, *, retries: int = 0) -> dict[str, Run]:
        """Run the jobs as tasks of one flow run, `at_once` at a time; return the runs of all cells.

        Raises StoppedByUserError after Ctrl-C, SIGTERM or a closed terminal, once everything has ended.
        """
        from flows.run.chain import Chain  # imports Prefect
        from flows.run.flow_run import in_flow_run

        chain = Chain([self.node(job, retries) for job in self.jobs], self.terminal, at_once, keep_going=True)

        async def chained() -> RunResult:
            await chain.run()
            return run_result(chain.outcomes, chain.stopped, f"{len(self.batch.cells)} cells have a result")

        server.wait()
        in_flow_run("sweep", chained, server, run_name=self.batch.name)
        if chain.stopped:
            left = sum(cell.id not in self.runs or self.runs[cell.id].state == "cancelled" for cell in self.batch.cells)
            message = f"sweep {self.batch.name}: stopped; {left} cells are left; run the same command to continue"
            raise StoppedByUserError(message)
        return self.runs

    def node(self, job: Job, retries: int = 0) -> "Node":
        """Return a job as a node of the chain. Jobs in the clone of the same cell do not run at the same time.

        A job after a failed job does not start, and gets its outcome.
        """
        from flows.run.chain import Node

        async def worked(log: "Log") -> StageOutcome:
            return self.recorded(job, await self.work(job, log))

        def blocked(upstream: StageOutcome | None, name: str) -> StageOutcome | None:
            return self.recorded(job, replace(upstream, name=name, seconds=0.0)) if upstream else None

        return Node(
            job.name(self.cells),
            worked,
            tuple(other.name(self.cells) for other in self.jobs if other.key in job.waits_for),
            tuple(str(self.clones[cell]) for cell in job.cells[:1] if cell in self.clones),
            retries,
            self.batch.facts.retry_delay_seconds,
            blocked=blocked,
        )

    def recorded(self, job: Job, outcome: StageOutcome) -> StageOutcome:
        """Record the cell of a job that ended, unless it may succeed later; remove its clone if it succeeded."""
        if job.shared:
            return outcome
        cell, commit = self.cells[job.cells[0]], ""
        texts: Mapping[str, str] = {}
        if outcome.good:
            try:
                commit, texts = self.collect(cell)
            except UserError as error:
                outcome = replace(outcome, result="failed", message=str(error), exit_code=EXIT_UNAVAILABLE)
        values, points = reports_and_curves(texts, self.batch.reports, self.batch.curves)
        state: RunState = "finished" if outcome.good else "cancelled" if outcome.may_pass else "failed"
        params = cell.params(self.batch.params)
        self.runs[cell.id] = Run(
            cell=cell.id,
            state=state,
            experiment=cell.name if commit else "",
            commit=commit,
            baseline=self.head,
            params={name: section for name, section in params.items() if name in self.batch.facts.sections},
            reports=values,
            curves=points,
            ended=datetime.now(UTC).isoformat(timespec="seconds"),
            message=outcome.message,
            keys=dict(self.keys[cell.id]),
        )
        if state != "cancelled":
            append_run(self.batch.record, self.runs[cell.id])
        if outcome.good:
            if cell.id in self.clones:
                discard(CLONES.absolute() / cell.id)
            self.terminal.lines(outcome.name, [f"finished as {cell.name} ({len(self.runs)} of {len(self.cells)})"])
        return outcome
