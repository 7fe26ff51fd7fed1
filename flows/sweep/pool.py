"""`parrotflow sweep NAME --pool`: jobs run on the workers of a Prefect work pool; their results are collected here.

Each job is a run of the flow `sweep-cell`. On a worker it fetches the commit from git's remote into a checkout of its
own, runs the stages in a clone as a sweep on one machine does, takes results from the DVC remote and pushes its own
there; a cell's DVC experiment comes back by git's remote.
Prefect's server knows what was started and how it ended, so the same command continues after a kill: it finds the flow
runs of a job by their tag.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from dvc.exceptions import DvcException
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed
from pydantic import Json

from flows import checkout
from flows.checkout import (
    RETRY_DELAYS_SECONDS,
    as_task,
    checkout_folder,
    has_remote,
    require_names,
    source_address,
)
from flows.dvc_repo import experiment_ref, git, push_results, texts_at
from flows.environment import prepare_environment
from flows.experiments.cells import Cell
from flows.experiments.runs import Run, last_runs
from flows.run.locks import run_lock
from flows.run.outcome import StoppedError
from flows.sweep.clone import CLONES, discard, fetch_experiment, prepare, save_experiment
from flows.sweep.jobs import Ended, Job, Progress, carry_out, jobs_of
from flows.sweep.keys import working_in
from flows.sweep.processes import run_one
from stages.runtime.errors import UnavailableError, UserError, first_line
from stages.runtime.section import read_params_file

if TYPE_CHECKING:
    from flows.sweep.run_cells import Batch

DEPLOYMENT = "sweep-cell/sweep-cell"

ASKED_ONCE = {PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_API_REQUEST_TIMEOUT: 10.0}
"""The loop asks again by itself: Prefect's own tries would answer Ctrl-C after minutes."""

POLL_SECONDS = 2.0
"""Between two questions about one flow run."""


def run_cells_on_pool(batch: "Batch", head: str, keys: Mapping[str, Mapping[str, str]]) -> dict[str, Run]:
    """As `run_cells`, on the workers of a pool.

    Raises UserError before anything runs if workers could not get the commit or share results, StoppedError after
    Ctrl-C: the flow runs are then cancelled.
    """
    require_reachable(head)
    progress = Progress(batch.title, {cell.id: cell for cell in batch.cells})
    with temporary_settings(ASKED_ONCE), get_client(sync_client=True) as client, progress:
        on_pool = OnPool(client, deployment_of_cells(client), head, keys, batch, progress)
        carry_out(jobs_of(batch, keys, head), on_pool.start, on_pool.record, progress)
    return on_pool.runs


def require_reachable(head: str) -> None:
    """Raise UserError unless workers can get this commit from git's remote, and results from a DVC remote."""
    if not os.environ.get("PREFECT_API_URL"):
        raise UserError("--pool: no Prefect server; export PREFECT_API_URL=http://HOST:4200/api")
    if not has_remote():
        raise UserError(
            "--pool: no default DVC remote, by which workers share results: `dvc remote add -d store ADDRESS` with a "
            "whole address, commit .dvc/config and push"
        )
    if not git(Path(), "remote", "get-url", "origin", check=False):
        raise UserError("--pool: this repository has no git remote `origin`, from which workers take the commit")
    git(Path(), "fetch", "--quiet", "origin")
    if git(Path(), "rev-list", "--max-count=1", head, "--not", "--remotes=origin"):
        raise UserError(f"--pool: origin does not have the commit {head[:12]}, which workers fetch; git push first")


def deployment_of_cells(client: SyncPrefectClient) -> UUID:
    """The deployment. Raises UserError if the server does not answer or does not have it."""
    try:
        return client.read_deployment_by_name(DEPLOYMENT).id
    except ObjectNotFound:
        make = "`prefect deploy --name sweep-cell` makes it"
        raise UserError(f"{client.api_url}: no deployment {DEPLOYMENT}; {make}") from None
    except httpx.HTTPError as error:
        raise UserError(f"Prefect's server at {client.api_url} does not answer: {first_line(error)}") from None


@dataclass
class OnPool:
    """Starts jobs as flow runs, and records their cells."""

    client: SyncPrefectClient
    deployment: UUID
    head: str
    keys: Mapping[str, Mapping[str, str]]
    batch: "Batch"
    progress: Progress
    runs: dict[str, Run] = field(default_factory=dict)
    silent: bool = False
    """Whether the server did not answer the last question."""

    def start(self, job: Job) -> "OneFlowRun | None":
        """Take over what an earlier call has started, else start an attempt after it; None if no server answers."""
        ours = FlowRunFilter(
            tags=FlowRunFilterTags(all_=[job.key]), deployment_id=FlowRunFilterDeploymentId(any_=[self.deployment])
        )
        run: FlowRun | None = None
        with self.asking():
            # Attempts are not counted: once an old one is deleted on the server, a number would be that of another.
            runs = self.client.read_flow_runs(flow_run_filter=ours, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=1)
            run = runs[0] if runs and self._counts(job, runs[0]) else self._submit(job, runs[0].id if runs else None)
        return OneFlowRun(self, run.id) if run else None

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Say once if the server is away, which passes. Raises UserError if it refuses the question, for good."""
        try:
            yield
            self.silent = False
        except httpx.HTTPError as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403, 404):
                raise UserError(f"Prefect's server at {self.client.api_url}: {first_line(error)}") from None
            if not self.silent:
                self.progress.print(f"Prefect's server does not answer ({first_line(error)}); waiting for it ...")
            self.silent = True

    def _counts(self, job: Job, newest: FlowRun) -> bool:
        """Whether what an earlier call has started is what this one wants."""
        match newest.state_type:
            case StateType.COMPLETED:
                ref = experiment_ref(self.head, self.progress.cells[job.cells[0]].name)
                return job.shared or bool(git(Path(), "ls-remote", "origin", ref))
            case StateType.FAILED:
                last = last_runs(self.batch.record)
                # Whose failure at this commit is recorded is to be tried again.
                return not any(cell in last and last[cell].baseline == self.head for cell in job.cells)
            case state:
                return state not in (StateType.CRASHED, StateType.CANCELLED, StateType.CANCELLING)

    def _submit(self, job: Job, after: UUID | None) -> FlowRun:
        cell = self.progress.cells[job.cells[0]]
        # As a text: a server may give the keys of an object back in another order, and overrides have one.
        sent = {"commit": self.head, "cell": json.dumps(asdict(replace(cell, id=job.folder)))}
        return run_deployment(  # type: ignore[return-value]
            self.deployment,
            parameters=sent | {"targets": list(job.targets), "shared": job.shared},
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
        cell, commit, texts = self.progress.cells[job.cells[0]], "", dict[str, str]()
        if ended.state == "finished":
            try:
                commit = fetch_experiment("origin", experiment_ref(self.head, cell.name))
                texts = texts_at(commit, self.batch.files)
                if absent := sorted({*self.batch.reports} - texts.keys()):
                    raise UserError(f"neither git nor the DVC remote has {', '.join(absent)}")
            except Exception as error:  # each kind of remote has errors of its own; the same command collects later
                said = str(error) or type(error).__name__
                commit, ended = "", Ended("cancelled", f"the results of {cell.name} cannot be read: {said}")
        params, keys = cell.params(read_params_file()), self.keys[cell.id]
        run = self.batch.end(cell, ended, self.head, params, keys, commit=commit, texts=texts)
        self.runs[cell.id] = run
        self.progress.recorded(run)
        return ended


@dataclass
class OneFlowRun:
    """A job at work on some worker."""

    pool: OnPool
    id: UUID
    next_question: float = 0.0
    stopped: bool = False

    def poll(self) -> Ended | None:
        """How it ended; None while it works, and while the server does not answer."""
        if self.stopped or time.monotonic() < self.next_question:
            return Ended("cancelled") if self.stopped else None
        self.next_question = time.monotonic() + POLL_SECONDS
        state = None
        try:
            with self.pool.asking():
                state = self.pool.client.read_flow_run(self.id).state
        except ObjectNotFound:
            return Ended("cancelled", "its flow run was deleted on the server")
        if state is None or not state.is_final() or state.is_completed():
            return Ended("finished") if state and state.is_completed() else None
        return Ended("failed" if state.is_failed() else "cancelled", state.message or f"its flow run is {state.name}")

    def stop(self) -> None:
        """Cancel it; the worker that runs it, if one does, ends what it has started."""
        self.stopped = True
        with suppress(httpx.HTTPError):
            self.pool.client.set_flow_run_state(self.id, Cancelling(message="the sweep was stopped"))


@flow(name="sweep-cell", persist_result=False)
def sweep_cell(commit: str, cell: Json[Cell], targets: list[str], shared: bool = False) -> State[Any]:
    """Bring `targets` of a cell up to date at `commit`, and send off what came of it.

    With `shared` they are stages that other cells need too, and no DVC experiment is made. Ends as failed if a stage
    did for good, which is recorded, and as crashed if the same may succeed later or once the set-up is mended.
    """
    prepare_environment()
    try:
        if not re.fullmatch(r"[a-z0-9-]+", cell.id) or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
            raise UserError(f"{cell.id}, {commit}: expected a cell's id and a commit")
        require_names(*targets, cell.name)
        source, folder = source_address(git(Path(), "remote", "get-url", "origin")), checkout_folder()
        with run_lock(flow_run.name or cell.name, wait=True, folder=folder):
            as_task("checkout", checkout.bring_to_commit, RETRY_DELAYS_SECONDS)(folder, source, commit)
            os.chdir(folder)
            made = CLONES.absolute() / cell.id
            ended = run_one(cell, targets, prepare(cell, commit, made))
            if ended.state != "finished":
                return (Failed if ended.state == "failed" else Crashed)(message=ended.message)
            as_task("push", push, RETRY_DELAYS_SECONDS)(made, targets, None if shared else cell.name)
            discard(made)
    except StoppedError as error:
        return Cancelled(message=str(error))
    except (UserError, DvcException, OSError) as error:
        # Of this machine or its set-up, not of the cell: once mended, the same command tries it again.
        return Crashed(message=str(error))
    return Completed()


def push(made: Path, targets: list[str], name: str | None) -> None:
    """Bring a clone's results to the DVC remote and its DVC experiment, if it is to be one, to git's remote."""
    folder = made / git(Path(), "rev-parse", "--show-prefix")
    with working_in(folder):
        push_results(targets)
    if name:
        save_experiment(folder, name, targets)
        ref = experiment_ref(git(Path(), "rev-parse", "HEAD"), name)
        git(Path(), "push", "--quiet", "--force", "origin", f"{ref}:{ref}", error=UnavailableError)
