"""The flow runs of a sweep on a Prefect server, by its client; a work pool's workers take them."""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterId,
    FlowRunFilterTags,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, WorkPoolStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.filters import EventFilter, EventNameFilter, EventOccurredFilter, EventResourceFilter
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling, Crashed

from flows.run.server import configured_server
from stages.runtime.entry import UserError, first_line

FLOW = "sweep-cell"
DEPLOYMENT = "sweep-cell"

PAGE = 200
"""Entries that the server gives in one answer."""


class FlowRuns:
    """Those of one work pool's deployment of the flow."""

    def __init__(self, pool: str) -> None:
        """Raises UserError where there is no server, no such pool, or no deployment of the flow in it."""
        server = configured_server()
        if server is None:
            raise UserError(
                "--pool: PREFECT_API_URL names no Prefect server; export PREFECT_API_URL=http://HOST:4200/api"
            )
        self.pool, self._client = pool, get_client(sync_client=True)
        try:
            self._client.read_work_pool(pool)
            deployments = self._client.read_deployments(
                flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW])),
                work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
            )
        except ObjectNotFound:
            make = f"`prefect work-pool create {pool} --type process` makes it"
            raise UserError(f"{server.api}: no work pool `{pool}`; {make}") from None
        except httpx.TransportError as error:
            raise UserError(
                f"Prefect's server at {server.api} does not answer ({first_line(error)}); start it, or correct "
                "PREFECT_API_URL"
            ) from None
        except httpx.HTTPStatusError as error:
            raise UserError(f"{server.api}: {error.response.status_code} {error.response.text[:200]}") from None
        if not deployments:
            raise UserError(
                f"{server.api}: work pool `{pool}` has no deployment of the flow {FLOW}; "
                f"`prefect deploy --name {DEPLOYMENT} --pool {pool}` makes it"
            )
        self._deployment = deployments[0].id

    def has_worker(self) -> bool:
        """Whether a worker of the pool is up."""
        return self._client.read_work_pool(self.pool).status != WorkPoolStatus.NOT_READY

    def of_job(self, key: str) -> list[FlowRun]:
        """All attempts at a job, the oldest first."""
        ours = FlowRunFilter(
            tags=FlowRunFilterTags(all_=[key]), deployment_id=FlowRunFilterDeploymentId(any_=[self._deployment])
        )
        return self._client.read_flow_runs(flow_run_filter=ours, sort=FlowRunSort.EXPECTED_START_TIME_ASC)

    def submit(self, key: str, after: UUID | None, name: str, parameters: dict[str, Any]) -> FlowRun:
        """Start an attempt at a job `after` its newest one; what another call has started after that is taken instead.

        Attempts are not counted: once an old one is deleted on the server, a number would be that of another attempt.
        """
        # On the server these keys are the flow's, which other pools' deployments have too.
        unique = f"{self._deployment}-{key}-{after}"
        return self._client.create_flow_run_from_deployment(
            self._deployment, parameters=parameters, name=name, tags=[key], idempotency_key=unique
        )

    def read(self, ids: Collection[UUID]) -> Iterator[tuple[UUID, FlowRun | None]]:
        """How they are now; None for one that the server does not know any more."""
        all_ids = [*ids]
        for first in range(0, len(all_ids), PAGE):
            some = all_ids[first : first + PAGE]
            ours = FlowRunFilter(id=FlowRunFilterId(any_=some))
            found = {run.id: run for run in self._client.read_flow_runs(flow_run_filter=ours)}
            yield from ((id_, found.get(id_)) for id_ in some)

    def is_silent(self, run: FlowRun, seconds: float) -> bool:
        """Whether a flow run was left to a worker for so long without a heartbeat: its machine is gone."""
        since, state = datetime.now(UTC) - timedelta(seconds=seconds), run.state
        if state is None or not (state.is_pending() or state.is_running() or state.is_cancelling()):
            return False
        heard = EventFilter(
            event=EventNameFilter(name=["prefect.flow-run.heartbeat"]),
            resource=EventResourceFilter(id=[f"prefect.flow-run.{run.id}"]),
            occurred=EventOccurredFilter(since=since),
        )
        return state.timestamp < since and not self._client.read_events(heard, limit=1).events

    def give_up(self, run: FlowRun, message: str) -> None:
        """Record that a flow run is gone."""
        self._client.set_flow_run_state(run.id, Crashed(message=message), force=True)

    def cancel(self, run: FlowRun) -> None:
        """Ask for its end; the worker that runs it, if one does, ends what it has started."""
        wanted = Cancelling if run.state and run.state.is_running() else Cancelled
        self._client.set_flow_run_state(run.id, wanted(message="the sweep was stopped"))
