"""`parrotflow sweep NAME --pool POOL`: the cells run on the workers of a Prefect work pool; here they are collected.

For each job (flows/sweep/plan.py) a flow run of flows/sweep_cell.py is started. A worker fetches the commit from git's
remote, takes results from the DVC remote and leaves its own there; a cell's DVC experiment comes back by git's remote.
Prefect's server knows what was started and how it ended, so nothing is lost with this process: the same command finds
the flow runs of a job at a commit by their tag.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from configparser import ConfigParser
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun, StateType

from flows.dvc_repo.cache import experiment_ref, require_remote_answers, texts_at
from flows.experiments.runs import Batch, Run, RunState, last_runs
from flows.run.locks import run_lock
from flows.run.outcome import StoppedError
from flows.run.process import stopped_by_signals
from flows.sweep import clone
from flows.sweep.cell_runner import Live
from flows.sweep.committed import git
from flows.sweep.flow_runs import FlowRuns
from flows.sweep.plan import Job, computed_contents, jobs_of, known_and_to_run, working_in
from stages.runtime.entry import UserError, first_line
from stages.runtime.section import read_params_file

if TYPE_CHECKING:
    from flows.experiments.cells import Cell

POLL_SECONDS = 2.0

SILENT_SECONDS = 300.0
"""After which a flow run without a heartbeat is lost; it sends one every 30 s (prefect.yaml), else every 180 s."""

ASK_SECONDS = 30.0
"""Between two looks for flow runs that are lost."""

COLLECT_TRIES = 5
"""How often a remote that does not answer is asked for a cell's results."""

PLANNING = clone.CLONES / "plan"
"""The clone in which the stages of each cell are looked up."""


def run_cells_on_pool(batch: Batch, *, pool: str, wait: bool = False) -> list[Run]:
    """As `run_cells`, on the workers of a pool.

    Raises UserError before anything runs where the workers could not get the commit or share results, StoppedError
    after Ctrl-C: the flow runs are then cancelled.
    """
    with run_lock(batch.title, wait=wait):
        head, values = commit_for_workers(batch.targets, batch.cells), read_params_file()
        flow_runs = FlowRuns(pool)
        known, to_run = known_and_to_run(batch)
        if to_run:
            names = {id_: cell.name for id_, cell in to_run.items()}
            contents, cache = {}, clone.project_cache()
            for id_, cell in to_run.items():
                with working_in(clone.prepare(cell, head, PLANNING, cache=cache)):
                    contents[id_] = computed_contents(batch.targets)
            clone.discard(PLANNING.absolute())
            jobs = jobs_of(contents, names, batch.targets, head, batch.reports)
            last = last_runs(batch.record)
            again = {id_ for id_, run in last.items() if run.state == "failed" and run.baseline == head}
            live = Live(batch.title, to_run, (), len(known))
            on_pool = OnPool(flow_runs, head, values, to_run, jobs, again, batch, live)
            with stopped_by_signals(on_pool.stopping.set), live:
                known |= on_pool.run()
    return [known[cell.id] for cell in batch.cells]


def commit_for_workers(targets: Sequence[str], cells: Sequence["Cell"] = ()) -> str:
    """HEAD. Raises UserError where workers could not get all that the cells read, or results not come back."""
    head = clone.head_commit(targets, cells, with_params=True)
    require_reachable(head)
    require_remote_answers()
    return head


def require_reachable(head: str) -> None:
    """Raise UserError unless workers can get this commit from git's remote, and results from a DVC remote."""
    config = ConfigParser(interpolation=None)
    config.read_string(git(Path(), "show", f"{head}:./.dvc/config", check=False))
    remote = config.get("core", "remote", fallback="")
    if not remote:
        raise UserError(
            "--pool: this commit names no default DVC remote, by which workers share results; "
            "`dvc remote add -d store ADDRESS`, then commit .dvc/config and push"
        )
    url = config.get(f"'remote \"{remote}\"'", "url", fallback="").strip("'\"")
    if "://" not in url and not Path(url).is_absolute():
        raise UserError(
            f"--pool: the DVC remote {remote} is at `{url}`, which on a worker lies within its clone; "
            f"`dvc remote modify {remote} url ADDRESS` with a whole address, then commit .dvc/config and push"
        )
    if not git(Path(), "remote", "get-url", "origin", check=False):
        raise UserError("--pool: this repository has no git remote `origin`, from which workers take the commit")
    git(Path(), "fetch", "--quiet", "origin")
    if git(Path(), "rev-list", "--max-count=1", head, "--not", "--remotes=origin"):
        raise UserError(f"--pool: origin does not have the commit {head[:12]}, which workers fetch; git push first")


@dataclass
class OnPool:
    """The jobs of one sweep, from their submission to the record of their cells."""

    flow_runs: FlowRuns
    head: str
    values: Mapping[str, Any]
    """Of params.yaml in this commit."""
    cells: Mapping[str, "Cell"]
    """By their ids."""
    jobs: Sequence[Job]
    again: Collection[str]
    """Cells whose failure at this commit is recorded, and which are to be tried again."""
    batch: Batch
    live: Live
    stopping: threading.Event = field(default_factory=threading.Event)
    runs: dict[str, Run] = field(default_factory=dict)
    _waiting: dict[str, Job] = field(default_factory=dict)
    _watched: dict[UUID, tuple[Job, FlowRun]] = field(default_factory=dict)
    """By the ids of the flow runs."""
    _tries: Counter[UUID] = field(default_factory=Counter)

    def run(self) -> dict[str, Run]:
        """The run of each cell, by its id. Raises StoppedError once `stopping` is set."""
        self._waiting = {job.key: job for job in self.jobs}
        asked = time.monotonic()
        try:
            self._start_what_can()
            if not self.flow_runs.has_worker():
                start = f"prefect worker start --pool {self.flow_runs.pool} --limit 1"
                self.live.say(f"work pool {self.flow_runs.pool} has no worker; on each machine: {start}")
            while self._waiting or self._watched:
                if self.stopping.wait(POLL_SECONDS):
                    self._cancel()
                self._poll()
                if time.monotonic() - asked > ASK_SECONDS:
                    asked = time.monotonic()
                    for _, run in self._watched.values():
                        self._give_up_if_silent(run)
                self._start_what_can()
        except httpx.HTTPError as error:
            raise UserError(
                f"Prefect's server: {first_line(error)}; the flow runs continue there, and the same command collects "
                "them"
            ) from None
        return self.runs

    def _start_what_can(self) -> None:
        busy = {*self._waiting, *(job.key for job, _ in self._watched.values())}
        for job in [job for job in self._waiting.values() if not busy & set(job.waits_for)]:
            attempts = self.flow_runs.of_job(job.key)
            if attempts and attempts[-1].state_type == StateType.CANCELLING:
                self._give_up_if_silent(attempts[-1])
                continue
            if not (attempts and self._counts(job, attempts[-1])):
                attempts = [self._submit(job, attempts[-1].id if attempts else None)]
            self._watched[attempts[-1].id] = (job, attempts[-1])
            del self._waiting[job.key]
        at_work = sum(run.state_type == StateType.RUNNING for _, run in self._watched.values())
        self.live.note = f"{at_work} flow runs at work, {len(self._watched) - at_work} wait for a worker"

    def _counts(self, job: Job, newest: FlowRun) -> bool:
        """Whether what an earlier call has started is what this one wants."""
        match newest.state_type:
            case StateType.COMPLETED:
                ref = experiment_ref(self.head, self.cells[job.cells[0]].name)
                return job.shared or bool(git(Path(), "ls-remote", "origin", ref))
            case StateType.FAILED:
                return not set(job.cells) & set(self.again)
            case StateType.CRASHED | StateType.CANCELLED:
                return False
        return True

    def _submit(self, job: Job, after: UUID | None) -> FlowRun:
        cell = self.cells[job.cells[0]]
        parameters = {
            "commit": self.head,
            # As a text: a server may give the keys of an object back in another order, and overrides have one.
            "cell": json.dumps(asdict(replace(cell, id=job.folder))),
            "targets": list(job.targets),
            "reports": sorted(self.batch.reports),
            "shared": job.shared,
        }
        name = f"{', '.join(job.targets)} of {len(job.cells)} cells" if job.shared else cell.name
        return self.flow_runs.submit(job.key, after, name, parameters)

    def _poll(self) -> None:
        for id_, found in list(self.flow_runs.read(list(self._watched))):
            job, last = self._watched[id_]
            if found is not None:
                self._watched[id_] = (job, found)
            if self._has_ended(job, found or last, deleted=found is None):
                del self._watched[id_]

    def _has_ended(self, job: Job, run: FlowRun, *, deleted: bool) -> bool:
        """Record the cells of a job that has ended; False while it works, or if a remote is to be asked once more."""
        if deleted:
            self._without_result(job, "cancelled", "its flow run was deleted on the server")
        elif run.state is None or not run.state.is_final():
            return False
        elif not run.state.is_completed():
            state: RunState = "failed" if run.state.is_failed() else "cancelled"
            self._without_result(job, state, run.state.message or f"its flow run was {(run.state.name or '').lower()}")
        elif not job.shared:
            try:
                self._finished(job.cells[0])
            except UserError as error:
                self._tries[run.id] += 1
                if self._tries[run.id] < COLLECT_TRIES:
                    return False
                self._without_result(job, "cancelled", str(error))
        return True

    def _finished(self, cell: str) -> None:
        """Fetch a cell's DVC experiment and record it. Raises UserError where a remote does not give it."""
        name = self.cells[cell].name
        commit = clone.fetch_experiment("origin", experiment_ref(self.head, name))
        try:
            texts = texts_at(commit, self.batch.files)
        except Exception as error:  # each kind of remote has errors of its own
            problem = str(error) or type(error).__name__
            raise UserError(f"the results of {name} cannot be read from the DVC remote: {problem}") from error
        if absent := sorted({*self.batch.reports} - texts.keys()):
            raise UserError(f"the results of {name}: neither git nor the DVC remote has {', '.join(absent)}")
        self._append(cell, "finished", commit=commit, texts=texts)

    def _without_result(self, job: Job, state: RunState, message: str) -> None:
        """No cell of a job has a result: they failed, which is recorded, or their flow run is gone."""
        for cell in job.cells:
            if cell not in self.runs:
                self._append(cell, state, message=message)
        ended = set(self.runs)
        self._waiting = {key: job for key, job in self._waiting.items() if not set(job.cells) <= ended}

    def _append(self, cell: str, state: RunState, **found: Any) -> None:
        params = self.cells[cell].params(self.values)
        self.runs[cell] = self.batch.end(self.cells[cell], state, self.head, params, **found)
        self.live.on_ended(self.runs[cell])

    def _give_up_if_silent(self, run: FlowRun) -> None:
        if self.flow_runs.is_silent(run, SILENT_SECONDS):
            self.flow_runs.give_up(run, f"its worker was not heard of for {SILENT_SECONDS:.0f} s")

    def _cancel(self) -> None:
        """Cancel what was started; raises StoppedError."""
        for _, run in self._watched.values():
            self.flow_runs.cancel(run)
        raise StoppedError(
            f"stopped; {len(self.runs)} of {len(self.cells)} cells are done, {len(self._watched)} flow runs are "
            "cancelled; the same command continues"
        )
