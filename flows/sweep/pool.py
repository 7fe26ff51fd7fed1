"""`parrotflow sweep NAME --pool`: jobs run on the workers of a Prefect work pool; their results are collected here.

Each job is a run of the flow `sweep-cell`. On a worker it fetches the commit from the git remote into the worker's
checkout, and runs the stages in a clone, as a sweep on one machine does. It gets results from the DVC remote and pushes
new ones there; a cell's DVC experiment comes back by the git remote. Prefect's server has the states of the flow runs,
so the same command continues after a kill: it finds the flow runs of a job by their tag.
"""

import asyncio
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from dvc.exceptions import DvcException
from prefect import flow
from prefect.client.orchestration import PrefectClient, SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.deployments import arun_deployment
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed
from pydantic import Json

from flows import checkout
from flows.checkout import RETRY_DELAYS_SECONDS, as_task, checkout_folder, require_names, source_address
from flows.dvc_repo import default_remote, experiment_ref, fetch_run_cache, git, push_results, texts_at
from flows.environment import prepare_environment
from flows.experiments.cells import Cell
from flows.experiments.record import Run, last_runs
from flows.run.chain import Chain, Log, Node
from flows.run.locks import run_lock
from flows.run.outcome import StageOutcome
from flows.run.programs import stage_environment
from flows.run.server import Server
from flows.run.terminal import NodeRow, Terminal
from flows.sweep.clone import CLONES, discard, fetch_experiment, prepare_clone, save_experiment
from flows.sweep.jobs import Batch, BatchRun, Job, repro_in_clone
from flows.sweep.keys import working_in
from stages.runtime.errors import EXIT_UNAVAILABLE, UnavailableError, UserError, first_line

DEPLOYMENT = "sweep-cell/sweep-cell"

POLL_SECONDS = 2.0
"""The interval between two requests for the state of a flow run."""

ASKED_ONCE = {PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_API_REQUEST_TIMEOUT: 10.0}
"""For `OnPool.work`, which repeats its requests itself: retries by Prefect would delay Ctrl-C by minutes."""


def run_cells_on_pool(batch: Batch, head: str, keys: Mapping[str, Mapping[str, str]], server: Server) -> dict[str, Run]:
    """Run cells on the workers of a pool; see `run_cells_here`.

    Raises UserError before anything runs if workers could not get the commit or share results, StoppedByUserError after
    Ctrl-C, which cancels the flow runs.
    """
    require_reachable(head)
    with get_client(sync_client=True) as client:
        deployment = deployment_of_cells(client)
    on_pool = OnPool(batch, head, keys, {}, deployment)
    return on_pool.run(server, len(on_pool.jobs))


def require_reachable(head: str) -> None:
    """Raise UserError unless workers can get this commit from the git remote, and results from a DVC remote."""
    if not os.environ.get("PREFECT_API_URL"):
        raise UserError("--pool: no Prefect server; export PREFECT_API_URL=http://HOST:4200/api")
    if not default_remote():
        raise UserError(
            "--pool: workers share results through the default DVC remote, which is not set: `dvc remote add -d store "
            "URL`, commit .dvc/config and push"
        )
    if not git(Path(), "remote", "get-url", "origin", check=False):
        raise UserError("--pool: workers fetch from the git remote `origin`, which is not set; add it and push")
    git(Path(), "fetch", "--quiet", "origin")
    if git(Path(), "rev-list", "--max-count=1", head, "--not", "--remotes=origin"):
        raise UserError(f"--pool: origin does not have the commit {head[:12]}, which workers fetch; git push first")


def deployment_of_cells(client: SyncPrefectClient) -> UUID:
    """Return the deployment's id. Raises UserError if the server does not answer or does not have it."""
    try:
        return client.read_deployment_by_name(DEPLOYMENT).id
    except ObjectNotFound:
        raise UserError(
            f"{client.api_url}: no deployment {DEPLOYMENT}; `prefect deploy --name sweep-cell` makes it"
        ) from None
    except httpx.HTTPError as error:
        raise UserError(f"Prefect's server at {client.api_url} does not answer: {first_line(error)}") from None


@dataclass
class OnPool(BatchRun):
    """Runs jobs as flow runs."""

    deployment: UUID
    silent: bool = False
    """True if the server did not answer the last request."""

    async def work(self, job: Job, log: Log) -> StageOutcome:
        """Follow the flow run of a job to its end. While the server does not answer, warn and ask again.

        If the calling task is cancelled, cancel the flow run; its worker then ends the processes that it started.
        """
        with temporary_settings(ASKED_ONCE):
            async with get_client() as client:
                return await self._follow(client, job)

    async def _follow(self, client: PrefectClient, job: Job) -> StageOutcome:
        name, id_ = job.name(self.cells), None
        try:
            while True:
                try:
                    with self.asking():
                        id_ = id_ or await self.flow_run_of(client, job)
                        if id_ and (outcome := outcome_of_flow_run(name, await client.read_flow_run(id_))):
                            return outcome
                except ObjectNotFound:
                    return unavailable(name, "its flow run was deleted on the server")
                except UserError as error:
                    return unavailable(name, str(error))
                await asyncio.sleep(POLL_SECONDS)
        except asyncio.CancelledError:
            if id_ is not None:
                with suppress(httpx.HTTPError):
                    await client.set_flow_run_state(id_, Cancelling(message="the sweep was stopped"))
            return StageOutcome(name, "stopped")

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Warn once if the server does not answer: it may come back. Raises UserError if it rejects the request."""
        try:
            yield
            self.silent = False
        except httpx.HTTPError as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403, 404):
                raise UserError(f"Prefect's server: {first_line(error)}") from None
            if not self.silent:
                self.terminal.say(f"Prefect's server does not answer ({first_line(error)}); waiting for it ...")
            self.silent = True

    async def flow_run_of(self, client: PrefectClient, job: Job) -> UUID | None:
        """Return the flow run that an earlier call started for this job, if it still counts, else a new one.

        None while a worker ends a cancelled flow run: another worker would compute the same cell meanwhile. If the
        worker is dead, Prefect's server ends the flow run after five minutes.
        """
        of_job = FlowRunFilter(
            tags=FlowRunFilterTags(all_=[job.key]), deployment_id=FlowRunFilterDeploymentId(any_=[self.deployment])
        )
        # The key of a new run has the old one's id, not a count, which repeats if a run is deleted on the server.
        runs = await client.read_flow_runs(flow_run_filter=of_job, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=1)
        if runs and runs[0].state_type is StateType.CANCELLING:
            return None
        if runs and self._counts(job, runs[0]):
            return runs[0].id
        return await self._submit(job, runs[0].id if runs else None)

    def _counts(self, job: Job, newest: FlowRun) -> bool:
        """Return True if the flow run that an earlier call started still counts for this job."""
        match newest.state_type:
            case StateType.COMPLETED:
                ref = experiment_ref(self.head, self.cells[job.cells[0]].name)
                return job.shared or bool(git(Path(), "ls-remote", "origin", ref))
            case StateType.FAILED:
                last = last_runs(self.batch.record)
                # A cell whose failure at this commit is recorded runs again.
                return not any(cell in last and last[cell].baseline == self.head for cell in job.cells)
            case state:
                return state not in (StateType.CRASHED, StateType.CANCELLED)

    async def _submit(self, job: Job, after: UUID | None) -> UUID:
        cell = self.cells[job.cells[0]]
        # As a text: a server may return an object's keys in another order, and the order of overrides matters.
        sent = {"commit": self.head, "cell": json.dumps(asdict(replace(cell, id=job.folder)))}
        started = await arun_deployment(
            self.deployment,
            parameters=sent | {"targets": list(job.targets), "shared": job.shared},
            flow_run_name=job.name(self.cells) if job.shared else cell.name,
            timeout=0,
            tags=[job.key],
            idempotency_key=f"{job.key}-{after}",
            as_subflow=False,
        )
        return UUID(str(started.id))

    def collect(self, cell: Cell) -> tuple[str, Mapping[str, str]]:
        """Fetch the DVC experiment that a worker has pushed."""
        try:
            commit = fetch_experiment("origin", experiment_ref(self.head, cell.name))
            texts = texts_at(commit, self.batch.files)
            if absent := sorted({*self.batch.reports} - texts.keys()):
                raise UserError(f"neither git nor the DVC remote has {', '.join(absent)}")
        except Exception as error:  # each kind of remote has its own errors; the same command collects later
            message = str(error) or type(error).__name__
            raise UserError(f"the results of {cell.name} cannot be read: {message}") from error
        return commit, texts


def outcome_of_flow_run(name: str, run: FlowRun) -> StageOutcome | None:
    """Return the outcome of a flow run; None while it runs."""
    state = run.state
    if state is None or not state.is_final():
        return None
    if state.is_completed():
        return StageOutcome(name, "ran")
    message = state.message or f"its flow run is {state.name}"
    return StageOutcome(name, "failed", message=message) if state.is_failed() else unavailable(name, message)


def unavailable(name: str, message: str) -> StageOutcome:
    """Return the outcome of a failure that may go away by itself."""
    return StageOutcome(name, "failed", message=message, exit_code=EXIT_UNAVAILABLE)


@flow(name="sweep-cell", persist_result=False)
async def sweep_cell(commit: str, cell: Json[Cell], targets: list[str], shared: bool = False) -> State[Any]:
    """Bring `targets` of a cell up to date at `commit`, and push the results.

    With `shared`, other cells need these stages too, and no DVC experiment is made. Ends as failed, which is recorded,
    if a stage failed for good, and as crashed if a retry may help, maybe after a repair of the worker.
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
            fetch_run_cache()
            made = CLONES.absolute() / cell.id
            terminal = Terminal([NodeRow(cell.name)])
            node = Node(
                cell.name,
                partial(
                    repro_in_clone,
                    cell.name,
                    targets,
                    prepare_clone(cell, commit, made),
                    stage_environment(targets),
                    terminal,
                    pull=True,
                ),
            )
            chain = Chain([node], terminal, at_once=1)
            await chain.run()
            if chain.stopped:
                return Cancelled(message="stopped")
            outcome = chain.outcomes[cell.name]
            if outcome.good:
                as_task("push", push, RETRY_DELAYS_SECONDS)(made, targets, None if shared else cell.name)
            return end_of_cell(outcome, made)
    except (UserError, DvcException, OSError) as error:
        # A fault of this machine, not of the cell: the same command runs the cell again.
        return Crashed(message=str(error))


def end_of_cell(outcome: StageOutcome, made: Path) -> State[Any]:
    """Return the state of a cell, and remove its clone unless the same command may continue there."""
    if outcome.may_pass:
        return Crashed(message=outcome.message)
    discard(made)
    return Completed() if outcome.good else Failed(message=outcome.message)


def push(made: Path, targets: list[str], name: str | None) -> None:
    """Push a clone's results to the DVC remote and, if it has a `name`, its DVC experiment to the git remote."""
    folder = made / git(Path(), "rev-parse", "--show-prefix")
    with working_in(folder):
        push_results(targets)
    if name:
        save_experiment(folder, name, targets)
        ref = experiment_ref(git(Path(), "rev-parse", "HEAD"), name)
        git(Path(), "push", "--quiet", "--force", "origin", f"{ref}:{ref}", error=UnavailableError)
