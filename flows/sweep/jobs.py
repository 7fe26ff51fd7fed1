"""The jobs of a sweep: one for the stages that several cells share, then one for each cell.

Stages with the same content key (keys.py) compute the same. What is shared is computed once, and the cells restore it
from DVC's cache. A job is a node of the sweep's chain: `dvc repro` in a clone here, or a flow run on a work pool.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flows.environment import dvc_state_within
from flows.run.dvc_process import run_repro
from flows.run.outcome import RunResult, StageOutcome, StoppedByUserError, outcome_of, run_result, with_stage_name
from flows.run.programs import redactor, shown_lines

if TYPE_CHECKING:
    from flows.experiments.cells import Cell
    from flows.run.chain import Chain, Log, Node
    from flows.run.server import Server
    from flows.run.terminal import Terminal
    from flows.sweep.batch import Batch


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

    def name(self, cells: Mapping[str, "Cell"]) -> str:
        """Its name for the user, other than that of each other job."""
        label = cells[self.cells[0]].label
        return f"{self.targets[-1]} of {label} + {len(self.cells) - 1}" if self.shared else label


async def repro_in_clone(
    name: str,
    targets: Sequence[str],
    folder: Path,
    environment: dict[str, str],
    terminal: "Terminal",
    log: "Log",
    *,
    pull: bool = False,
) -> StageOutcome:
    """Bring the targets up to date in a clone.

    The log gets all lines; the terminal shows which stage runs, how far it is, and warnings. With `pull`, missing
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
    end = await run_repro(targets, folder, environment, on_lines, on_stage, pull=pull)
    outcome = outcome_of(name, end)
    message = outcome.message if end.stage_code is None else with_stage_name(running, outcome.message)
    return replace(outcome, message=redact(message))


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


def nodes_of(
    jobs: Sequence[Job],
    cells: Mapping[str, "Cell"],
    work: Callable[[Job, "Log"], Awaitable[StageOutcome]],
    record: Callable[[Job, StageOutcome], StageOutcome],
    clones: Mapping[str, Path],
    *,
    retries: int = 0,
    retry_delay_seconds: float = 0.0,
) -> list["Node"]:
    """The jobs as nodes of a chain. Jobs of the same cell do not run at the same time in its clone, of those given.

    `record` gets the outcome of a job that never started, too: that of the job before it, which failed.
    """
    from flows.run.chain import Node  # imports Prefect

    def node(job: Job) -> Node:
        def blocked(upstream: StageOutcome | None, name: str) -> StageOutcome | None:
            return record(job, replace(upstream, name=name, seconds=0.0)) if upstream else None

        return Node(
            job.name(cells),
            partial(work, job),
            tuple(other.name(cells) for other in jobs if other.key in job.waits_for),
            tuple(str(clones[cell]) for cell in job.cells[:1] if cell in clones),
            retries,
            retry_delay_seconds,
            blocked=blocked,
        )

    return [node(job) for job in jobs]


def run_jobs(batch: "Batch", chain: "Chain", server: "Server") -> None:
    """Run the jobs of a batch as tasks of one flow run. Raises StoppedError after Ctrl-C, SIGTERM or a closed terminal,
    once everything has ended."""
    from flows.run.flow_run import in_flow_run

    async def work() -> RunResult:
        await chain.run()
        return run_result(chain.outcomes, chain.stopped, f"{len(batch.cells)} cells have a result")

    server.wait()
    in_flow_run("sweep", work, server)
    if chain.stopped:
        left = sum(cell.label not in chain.outcomes or chain.outcomes[cell.label].may_pass for cell in batch.cells)
        raise StoppedByUserError(f"{batch.title}: stopped; {left} cells are left, the same command continues")
