"""The flow runs of a sweep on a Prefect server, by its REST API; a work pool's workers take them."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from flows.show.address import configured_server
from flows.show.recorder import Api, UnreachableError
from stages.runtime.entry import UserError

FLOW = "sweep-cell"
DEPLOYMENT = "sweep-cell"

ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")

AT_A_WORKER = ("PENDING", "RUNNING", "CANCELLING")
"""States that a flow run leaves only by the worker that has taken it."""

PAGE = 200
"""Entries that the server gives in one answer."""


@dataclass(frozen=True)
class FlowRun:
    """A flow run as the server last told."""

    id: str
    state: str
    """Prefect's type of its state, such as `RUNNING`."""
    message: str
    since: datetime
    """When it got that state."""

    @property
    def ended(self) -> bool:
        """Whether its state is final."""
        return self.state in ENDED


@dataclass(frozen=True)
class StageTask:
    """A stage of a flow run, as its record on the server tells."""

    flow_run: str
    stage: str
    """`CELL/STAGE`; a cell's id, or the folder of a job."""
    state: str
    """Such as `Running`, `Ran` or `Restored`."""
    seconds: float
    message: str


class FlowRuns:
    """Those of one work pool's deployment of the flow."""

    def __init__(self, pool: str) -> None:
        """Raises UserError where there is no server, no such pool, or no deployment of the flow in it."""
        server = configured_server()
        if server is None:
            raise UserError(
                "--pool: PREFECT_API_URL names no Prefect server; export PREFECT_API_URL=http://HOST:4200/api"
            )
        self.pool = pool
        self._api = Api(server, lambda problem: None)
        try:
            self._api.get(f"/work_pools/{pool}")
            wanted = {"flows": {"name": {"any_": [FLOW]}}, "work_pools": {"name": {"any_": [pool]}}}
            deployments = self._api.post("/deployments/filter", wanted)
        except UnreachableError as error:
            raise UserError(
                f"Prefect's server does not answer ({error}); start it, or correct PREFECT_API_URL"
            ) from None
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.NOT_FOUND:
                make = f"`prefect work-pool create {pool} --type process` makes it"
                raise UserError(f"{server.api}: no work pool `{pool}`; {make}") from None
            raise UserError(f"{server.api}: {error.response.status_code} {error.response.text[:200]}") from None
        if not deployments:
            raise UserError(
                f"{server.api}: work pool `{pool}` has no deployment of the flow {FLOW}; "
                f"`prefect deploy --name {DEPLOYMENT} --pool {pool}` makes it"
            )
        self._deployment = deployments[0]["id"]

    def has_worker(self) -> bool:
        """Whether a worker of the pool is up."""
        return bool(self._api.get(f"/work_pools/{self.pool}")["status"] != "NOT_READY")

    def of_job(self, key: str) -> list[FlowRun]:
        """All attempts at a job, the oldest first."""
        ours = {"tags": {"all_": [key]}, "deployment_id": {"any_": [self._deployment]}}
        wanted = {"flow_runs": ours, "sort": "EXPECTED_START_TIME_ASC"}
        return [_flow_run(found) for found in self._api.post("/flow_runs/filter", wanted)]

    def submit(self, key: str, attempt: int, name: str, parameters: dict[str, Any]) -> FlowRun:
        """Start an attempt at a job; what another call has started as this attempt is taken instead."""
        # On the server these keys are the flow's, which other pools' deployments have too.
        unique = f"{self._deployment}-{key}-{attempt}"
        body = {"name": name, "parameters": parameters, "tags": [key], "idempotency_key": unique}
        return _flow_run(self._api.post(f"/deployments/{self._deployment}/create_flow_run", body))

    def read(self, ids: Sequence[str]) -> Iterator[FlowRun]:
        """How they are now; one that the server does not know any more has crashed."""
        for first in range(0, len(ids), PAGE):
            wanted = {"flow_runs": {"id": {"any_": list(ids[first : first + PAGE])}}}
            found = {run.id: run for run in map(_flow_run, self._api.post("/flow_runs/filter", wanted))}
            for id_ in ids[first : first + PAGE]:
                yield found.get(id_) or FlowRun(id_, "CRASHED", "deleted on the server", datetime.now(UTC))

    def stages(self, ids: Collection[str]) -> Iterator[StageTask]:
        """Their stages that have started, as far as the server knows."""
        for flow_run in ids:
            wanted = {"flow_runs": {"id": {"any_": [flow_run]}}, "sort": "EXPECTED_START_TIME_ASC"}
            for found in self._api.post("/task_runs/filter", wanted):
                state = found["state"]
                if "/" in found["name"] and state:
                    seconds = found["total_run_time"] or 0.0
                    yield StageTask(flow_run, found["name"], state["name"], seconds, state["message"] or "")

    def silent(self, run: FlowRun, seconds: float) -> bool:
        """Whether a flow run was left to a worker for so long without a heartbeat: its machine is gone."""
        since = datetime.now(UTC) - timedelta(seconds=seconds)
        if run.state not in AT_A_WORKER or run.since > since:
            return False
        heard = {
            "event": {"name": ["prefect.flow-run.heartbeat"]},
            "resource": {"id": [f"prefect.flow-run.{run.id}"]},
            "occurred": {"since": since.isoformat()},
        }
        return not self._api.post("/events/filter", {"filter": heard, "limit": 1})["events"]

    def give_up(self, run: FlowRun, message: str) -> None:
        """Record that a flow run is gone."""
        self._set_state(run, "CRASHED", message)

    def cancel(self, run: FlowRun) -> None:
        """Ask for its end; the worker that runs it, if one does, ends what it has started."""
        self._set_state(run, "CANCELLING" if run.state == "RUNNING" else "CANCELLED", "the sweep was stopped")

    def _set_state(self, run: FlowRun, kind: str, message: str) -> None:
        state = {"type": kind, "name": kind.capitalize(), "message": message}
        self._api.post(f"/flow_runs/{run.id}/set_state", {"state": state, "force": kind == "CRASHED"})


def _flow_run(found: Any) -> FlowRun:
    state = found["state"]
    return FlowRun(
        id=found["id"],
        state=state["type"],
        message=state["message"] or "",
        since=datetime.fromisoformat(state["timestamp"]),
    )
