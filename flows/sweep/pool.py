"""`parrotflow sweep NAME --pool`: jobs run on the workers of a Prefect work pool; their results are collected here.

Each job is a flow run of the deployment `sweep-cell` (flows/sweep_cell.py). A worker fetches the commit from git's
remote, takes results from the DVC remote and pushes its own there; a cell's DVC experiment comes back by git's remote.
Prefect's server knows what was started and how it ended, so the same command continues after a kill: it finds the flow
runs of a job by their tag.
"""

import json
import os
import time
from collections.abc import Collection, Mapping
from configparser import ConfigParser
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, StateType, WorkPoolStatus
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling

from flows.dvc_repo.cache import experiment_ref, require_remote_answers, texts_at
from flows.experiments.runs import Batch, Run, last_runs
from flows.git import git
from flows.sweep import clone
from flows.sweep.jobs import Ended, Job, carry_out, jobs_of
from flows.sweep.progress import Progress
from stages.runtime.entry import UserError, first_line
from stages.runtime.section import read_params_file

DEPLOYMENT = "sweep-cell/sweep-cell"

POLL_SECONDS = 2.0
"""Between two questions about one flow run."""


def run_cells_on_pool(batch: Batch, head: str, keys: Mapping[str, Mapping[str, str]]) -> dict[str, Run]:
    """As `run_cells`, on the workers of a pool.

    Raises UserError before anything runs if workers could not get the commit or share results, StoppedError after
    Ctrl-C: the flow runs are then cancelled.
    """
    if not os.environ.get("PREFECT_API_URL"):
        raise UserError("--pool: no Prefect server; export PREFECT_API_URL=http://HOST:4200/api")
    require_reachable(head)
    require_remote_answers()
    cells, last = {cell.id: cell for cell in batch.cells}, last_runs(batch.record)
    again = {id_ for id_, run in last.items() if run.state == "failed" and run.baseline == head}
    with get_client(sync_client=True) as client, Progress(batch.title, cells) as progress:
        deployment = deployment_of_cells(client)
        on_pool = OnPool(client, deployment, head, read_params_file(), keys, again, batch, progress)
        carry_out(jobs_of(batch, keys, head), on_pool.start, on_pool.record, title=batch.title)
    return on_pool.runs


def deployment_of_cells(client: SyncPrefectClient) -> DeploymentResponse:
    """The deployment. Raises UserError that names the command which starts, makes or corrects what is missing."""
    server = client.api_url
    try:
        deployment = client.read_deployment_by_name(DEPLOYMENT)
        pool = client.read_work_pool(deployment.work_pool_name or "")
    except ObjectNotFound:
        raise UserError(f"{server}: no deployment {DEPLOYMENT}; `prefect deploy --name sweep-cell` makes it") from None
    except httpx.HTTPError as error:
        raise UserError(
            f"Prefect's server at {server} does not answer ({first_line(error)}); start it, or correct "
            "PREFECT_API_URL (http://HOST:4200/api)"
        ) from None
    if pool.status == WorkPoolStatus.NOT_READY:
        start = f"prefect worker start --pool {pool.name} --limit 1"
        print(f"work pool {pool.name} has no worker; on each machine: {start}", flush=True)
    return deployment


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
    """Starts jobs as flow runs, and records their cells."""

    client: SyncPrefectClient
    deployment: DeploymentResponse
    head: str
    values: Mapping[str, Any]
    """Of params.yaml in this commit."""
    keys: Mapping[str, Mapping[str, str]]
    """Of the cells' stages."""
    again: Collection[str]
    """Cells whose failure at this commit is recorded, and which are to be tried again."""
    batch: Batch
    progress: Progress

    def __post_init__(self) -> None:
        self.cells = {cell.id: cell for cell in self.batch.cells}
        self.runs: dict[str, Run] = {}

    def start(self, job: Job) -> "OneFlowRun | None":
        """Take over what an earlier call has started, else start an attempt after it; None if no server answers."""
        try:
            run = self._taken_over_or_submitted(job)
        except httpx.TransportError:
            return None
        self.progress.started(job)
        return OneFlowRun(self.client, run.id, job, self.progress)

    def _taken_over_or_submitted(self, job: Job) -> FlowRun:
        ours = FlowRunFilter(
            tags=FlowRunFilterTags(all_=[job.key]), deployment_id=FlowRunFilterDeploymentId(any_=[self.deployment.id])
        )
        # Attempts are not counted: once an old one is deleted on the server, a number would be that of another.
        attempts = self.client.read_flow_runs(flow_run_filter=ours, sort=FlowRunSort.EXPECTED_START_TIME_ASC)
        newest = attempts[-1] if attempts else None
        return newest if newest and self._counts(job, newest) else self._submit(job, newest.id if newest else None)

    def _counts(self, job: Job, newest: FlowRun) -> bool:
        """Whether what an earlier call has started is what this one wants."""
        match newest.state_type:
            case StateType.COMPLETED:
                ref = experiment_ref(self.head, self.cells[job.cells[0]].name)
                return job.shared or bool(git(Path(), "ls-remote", "origin", ref))
            case StateType.FAILED:
                return not set(job.cells) & set(self.again)
            case StateType.CRASHED | StateType.CANCELLED | StateType.CANCELLING:
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
        return run_deployment(  # type: ignore[return-value]
            self.deployment.id,
            parameters=parameters,
            flow_run_name=f"{', '.join(job.targets)} of {len(job.cells)} cells" if job.shared else cell.name,
            timeout=0,
            tags=[job.key],
            idempotency_key=f"{job.key}-{after}",
            as_subflow=False,
        )

    def record(self, job: Job, ended: Ended) -> Ended:
        """Fetch the DVC experiment of a cell that has finished, and record the cell."""
        if job.shared:
            return ended
        cell, commit, texts = self.cells[job.cells[0]], "", dict[str, str]()
        if ended.state == "finished":
            try:
                commit, texts = self._collected(cell.name)
            except UserError as error:  # collected by the same command once the remote answers
                commit, ended = "", Ended("cancelled", str(error))
        params, keys = cell.params(self.values), dict(self.keys[cell.id])
        run = self.batch.end(
            cell, ended.state, self.head, params, keys, commit=commit, texts=texts, message=ended.message
        )
        self.runs[cell.id] = run
        self.progress.recorded(run)
        return ended

    def _collected(self, name: str) -> tuple[str, dict[str, str]]:
        """The commit of an experiment and the texts of its files. Raises UserError if a remote does not give them."""
        commit = clone.fetch_experiment("origin", experiment_ref(self.head, name))
        try:
            texts = texts_at(commit, self.batch.files)
        except Exception as error:  # each kind of remote has errors of its own
            problem = str(error) or type(error).__name__
            raise UserError(f"the results of {name} cannot be read from the DVC remote: {problem}") from error
        if absent := sorted({*self.batch.reports} - texts.keys()):
            raise UserError(f"the results of {name}: neither git nor the DVC remote has {', '.join(absent)}")
        return commit, texts


@dataclass
class OneFlowRun:
    """A job at work on some worker."""

    client: SyncPrefectClient
    id: UUID
    job: Job
    progress: Progress
    next_question: float = 0.0
    stopped: bool = False

    def poll(self) -> Ended | None:
        """How it ended; None while it works, and while the server does not answer."""
        if self.stopped:
            return Ended("cancelled", "the sweep was stopped")
        if time.monotonic() < self.next_question:
            return None
        self.next_question = time.monotonic() + POLL_SECONDS
        try:
            state = self.client.read_flow_run(self.id).state
        except ObjectNotFound:
            ended = Ended("cancelled", "its flow run was deleted on the server")
        except httpx.HTTPError:
            return None
        else:
            if state is None or not state.is_final():
                return None
            said = state.message or f"its flow run is {state.name}"
            ended = Ended("failed" if state.is_failed() else "cancelled", said)
            if state.is_completed():
                ended = Ended("finished")
        self.progress.ended(self.job, ended)
        return ended

    def stop(self) -> None:
        """Cancel it; the worker that runs it, if one does, ends what it has started."""
        self.stopped = True
        with suppress(httpx.HTTPError):
            state = self.client.read_flow_run(self.id).state
            wanted = Cancelling if state and state.is_running() else Cancelled
            self.client.set_flow_run_state(self.id, wanted(message="the sweep was stopped"))
