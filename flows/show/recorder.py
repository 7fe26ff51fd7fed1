"""Writes the record of a run to a Prefect server: `python -m flows.show.recorder RECORD`, a process of its own.

It follows the record while the run works, and ends soon after the run has. The run never waits for it. It speaks
Prefect's REST API by itself, since importing Prefect takes seconds:

- a flow run, whose states the server stamps with its own clock
- a task run per stage, by the events from which Prefect's server records task runs (`prefect.task-run.*`); they carry
  the true times, and the stages before it as inputs, so that Prefect's pages draw the graph
- logs with their own times, many in one request; artifacts

In the other direction it tells the run of a cancellation (SIGTERM) and of an approval (`reply` in flows/run/record.py).
"""

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import httpx

from flows.run.record import (
    ApprovalAsked,
    Artifact,
    Event,
    Lines,
    Progress,
    RunEnded,
    RunStarted,
    StageEnded,
    StageStarted,
    parse,
    read_lines,
    reply,
)
from flows.show.address import ServerAddress, configured_server

FLOW = "pipeline"
POLL_SECONDS = 0.3
CANCEL_SECONDS = 2.0
"""How often it asks whether the run was cancelled."""

CONNECT_SECONDS = 10.0
"""How long a server may take until its first answer."""

PATIENCE_SECONDS = 120.0
"""How long a server that once answered may be away."""

LOGS_PER_REQUEST = 500
LONGEST_LOG = 10_000

STATES = {
    "ran": ("COMPLETED", "Ran"),
    "unchanged": ("COMPLETED", "Unchanged"),
    "restored": ("COMPLETED", "Restored"),
    "refused": ("COMPLETED", "Refused"),
    "failed": ("FAILED", "Failed"),
    "stopped": ("CANCELLED", "Cancelled"),
}
"""A stage's result as a state of Prefect."""

RUN_STATES = {"Completed": "COMPLETED", "Refused": "COMPLETED", "Failed": "FAILED", "Cancelled": "CANCELLED"}

APPROVAL_SCHEMA = {
    "title": "Approval",
    "type": "object",
    "properties": {"value": {"title": "Run this stage", "type": "boolean"}},
    "required": ["value"],
    "additionalProperties": False,
}


class UnreachableError(Exception):
    """The server did not answer for longer than it may."""


class Api:
    """The calls of Prefect's REST API that a recorder needs; each is tried again while the server is away."""

    def __init__(self, server: ServerAddress, on_silence: Callable[[str], None] = print) -> None:
        """`on_silence` is told once if the server does not answer at first."""
        self.address, self._on_silence = server, on_silence
        self._client = httpx.Client(
            base_url=server.api, headers=server.headers(), timeout=httpx.Timeout(20, connect=5), trust_env=False
        )
        self._patience, self._has_answered, self._told = CONNECT_SECONDS, False, False

    def post(self, path: str, body: Any) -> Any:
        """Send a request until it is answered. Raises UnreachableError; httpx.HTTPStatusError where it is refused."""
        return self._send("POST", path, json=body)

    def get(self, path: str) -> Any:
        """Read something."""
        return self._send("GET", path)

    def _send(self, method: str, path: str, **options: Any) -> Any:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                response = self._client.request(method, path, **options)
                # 503: the server's SQLite is busy.
                if response.status_code < 500:
                    response.raise_for_status()
                    self._patience, self._has_answered = PATIENCE_SECONDS, True
                    return response.json() if response.content else None
                problem = f"{self.address.api}: {response.status_code}"
            except httpx.TransportError as error:
                problem = f"{self.address.api}: {str(error) or type(error).__name__}"
            if not (self._has_answered or self._told):
                self._told = True
                self._on_silence(problem)
            if time.monotonic() > deadline:
                raise UnreachableError(problem)
            time.sleep(0.5)


@dataclass
class Attempt:
    """The last attempt at a stage, as far as the record has told."""

    started: str
    number: int


@dataclass
class Recorder:
    """Writes the events of one run to a server."""

    api: Api
    record: Path
    flow_run: str = ""
    started: RunStarted | None = None
    attempts: dict[str, Attempt] = field(default_factory=dict)
    progress: dict[str, str] = field(default_factory=dict)
    """Stage -> the id of its progress artifact."""
    paused_for: str = ""
    """The stage that waits for approval."""
    ended: RunEnded | None = None

    def write(self, events: list[Event]) -> None:  # noqa: PLR0912
        """Write some events, in few requests."""
        logs: list[dict[str, Any]] = []
        task_events: list[dict[str, Any]] = []
        artifacts: list[Artifact] = []
        for event in events:
            match event:
                case RunStarted():
                    self._start(event)
                case Lines():
                    logs += [self._log(event.time, text, event.stage) for text in event.texts]
                case StageStarted():
                    self.attempts[event.stage] = Attempt(event.time, event.attempt)
                    task_events.append(self._task_event(event.stage, event.time, "RUNNING", "Running"))
                case StageEnded():
                    task_events += self._stage_ended(event)
                case Progress():
                    self._show_progress(event)
                case Artifact():
                    artifacts.append(event)
                case ApprovalAsked():
                    self._ask(event.stage)
                case RunEnded():
                    self.ended = event
        if task_events:
            self.api.post("/events", task_events)
        for first in range(0, len(logs), LOGS_PER_REQUEST):
            self.api.post("/logs/", logs[first : first + LOGS_PER_REQUEST])
        if self.ended:
            self._set_state(RUN_STATES[self.ended.state], self.ended.state, self.ended.message)
        # Last, since pictures take a second to draw.
        for artifact in artifacts:
            self._show(artifact)

    def poll(self) -> str:
        """Ask how the flow run is: hand on an approval; the type of its state."""
        found = self.api.get(f"/flow_runs/{self.flow_run}")["state"]
        if self.paused_for and found["type"] == "RUNNING":
            key = f"approve-{slug(self.paused_for)}-response"
            answer = self.api.get(f"/flow_runs/{self.flow_run}/input/{key}")
            reply(self.record, approval=self.paused_for, answer=bool((answer or {}).get("value")))
            self.paused_for = ""
        return str(found["type"])

    def crashed(self) -> None:
        """The run was killed: say so."""
        self._set_state("CRASHED", "Crashed", "the run was killed; the same command continues")

    def _start(self, event: RunStarted) -> None:
        self.started = event
        if event.flow_run:
            self.flow_run = event.flow_run
        else:
            flow = self.api.post("/flows/", {"name": FLOW})["id"]
            body = {
                "name": event.run,
                "flow_id": flow,
                "idempotency_key": event.run,
                "parameters": event.options,
                "state": {"type": "RUNNING", "name": "Running"},
            }
            self.flow_run = self.api.post("/flow_runs/", body)["id"]
        reply(self.record, page=f"{self.api.address.pages}/runs/flow-run/{self.flow_run}")
        notes = [self._log(event.time, f"why: {stage.why}", stage.name) for stage in event.stages if stage.why]
        self.api.post("/logs/", notes)

    def _stage_ended(self, event: StageEnded) -> Iterator[dict[str, Any]]:
        retry = event.retry_in_seconds
        if retry is not None:
            due = datetime.fromisoformat(event.time) + timedelta(seconds=retry)
            details = {"scheduled_time": due.isoformat()}
            yield self._task_event(event.stage, event.time, "SCHEDULED", "AwaitingRetry", event.message, details)
            return
        kind, name = STATES[event.result]
        message = event.message or f"{event.seconds:.1f} s"
        yield self._task_event(event.stage, event.time, kind, name, message, ended=event)

    def _task_event(
        self,
        stage: str,
        when: str,
        kind: str,
        name: str,
        message: str = "",
        details: dict[str, Any] | None = None,
        ended: StageEnded | None = None,
    ) -> dict[str, Any]:
        """The event of a change of a task run's state, as Prefect's own task engine sends it."""
        attempt = self.attempts.get(stage, Attempt(when, 0))
        upstream = next((known.upstream for known in self.stages() if known.name == stage), ())
        inputs = [{"input_type": "task_run", "id": self._task_run(other)} for other in upstream if self._runs(other)]
        task_run = {
            "task_key": stage,
            "dynamic_key": stage,
            "name": stage,
            "run_count": attempt.number,
            "start_time": attempt.started,
            "expected_start_time": attempt.started,
            "task_inputs": {"stages": inputs},
        }
        if ended:
            task_run |= {"end_time": when, "total_run_time": ended.seconds}
        task_id = self._task_run(stage)
        return {
            "id": str(uuid5(UUID(task_id), f"{name} {when}")),
            "occurred": when,
            "event": f"prefect.task-run.{name}",
            "payload": {
                "intended": {"from": None, "to": kind},
                "initial_state": None,
                "validated_state": {
                    "type": kind,
                    "name": name,
                    "message": message[:LONGEST_LOG],
                    "state_details": details or {},
                    "data": None,
                },
                "task_run": task_run,
            },
            "resource": {
                "prefect.resource.id": f"prefect.task-run.{task_id}",
                "prefect.resource.name": stage,
                "prefect.run-count": str(attempt.number),
                "prefect.state-message": message[:LONGEST_LOG],
                "prefect.state-name": name,
                "prefect.state-timestamp": when,
                "prefect.state-type": kind,
                "prefect.orchestration": "client",
            },
            "related": [
                {"prefect.resource.id": f"prefect.flow-run.{self.flow_run}", "prefect.resource.role": "flow-run"}
            ],
        }

    def stages(self) -> Any:
        """The stages of the run's plan."""
        return self.started.stages if self.started else ()

    def _runs(self, name: str) -> bool:
        return any(stage.name == name and stage.state != "clean" for stage in self.stages())

    def _task_run(self, stage: str) -> str:
        return str(uuid5(UUID(self.flow_run), stage))

    def _log(self, when: str, text: str, stage: str) -> dict[str, Any]:
        log = {"name": FLOW, "level": 20, "message": text[:LONGEST_LOG], "timestamp": when}
        return {**log, "flow_run_id": self.flow_run, "task_run_id": self._task_run(stage)}

    def _show_progress(self, event: Progress) -> None:
        percent = round(100.0 * event.done / event.total, 1)
        if event.stage in self.progress:
            self.api._send("PATCH", f"/artifacts/{self.progress[event.stage]}", json={"data": percent})
            return
        body = self._artifact(f"progress-{event.stage}", "progress", percent, event.stage, event.stage)
        self.progress[event.stage] = self.api.post("/artifacts/", body)["id"]

    def _show(self, event: Artifact) -> None:
        kind, data = event.kind, event.data
        if kind == "table":
            data = json.dumps(data)
        elif kind == "link":
            kind, data = "markdown", f"[{data}]({data})"
        elif kind == "curves":
            from flows.show.curves import draw

            kind, data = "image", draw(data)
        elif event.key.startswith("gate-"):
            data = f"### {event.description} of {event.stage}\n\n{data}\n"
        self.api.post("/artifacts/", self._artifact(event.key, kind, data, event.description, event.stage))

    def _artifact(self, key: str, kind: str, data: Any, description: str, stage: str | None) -> dict[str, Any]:
        body = {"key": slug(key), "type": kind, "data": data, "description": description, "flow_run_id": self.flow_run}
        # An artifact of a task run that the server does not know yet is not shown.
        return body | ({"task_run_id": self._task_run(stage)} if stage in self.attempts else {})

    def _ask(self, stage: str) -> None:
        """Pause the flow run until someone resumes it with yes or no."""
        keys = {part: f"approve-{slug(stage)}-{part}" for part in ("schema", "response", "description")}
        for part, value in (("schema", json.dumps(APPROVAL_SCHEMA)), ("description", json.dumps(f"Run {stage}?"))):
            with contextlib.suppress(httpx.HTTPStatusError):
                self.api.post(f"/flow_runs/{self.flow_run}/input", {"key": keys[part], "value": value})
        details = {"pause_reschedule": False, "pause_key": f"approve-{slug(stage)}", "run_input_keyset": keys}
        state = {"type": "PAUSED", "name": "Paused", "message": f"{stage} waits for approval", "state_details": details}
        self.api.post(f"/flow_runs/{self.flow_run}/set_state", {"state": state, "force": True})
        self.paused_for = stage

    def _set_state(self, kind: str, name: str, message: str) -> None:
        # Of a flow run that Prefect started, Prefect sets the state itself.
        if self.started and not self.started.flow_run:
            state = {"type": kind, "name": name, "message": message[:LONGEST_LOG]}
            self.api.post(f"/flow_runs/{self.flow_run}/set_state", {"state": state, "force": True})


def slug(name: str) -> str:
    """As Prefect wants keys: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def follow(record: Path, server: ServerAddress, *, live: bool) -> str:
    """Write a record to a server until its run has ended; the id of the flow run.

    `live`: the run is this process's parent, which is told of cancellations. Otherwise the record is read once.
    """
    api = Api(server, lambda problem: reply(record, unreachable=problem))
    recorder, offset, asked, cancelled = Recorder(api, record), 0, time.monotonic(), False
    while True:
        # Asked before reading: what a run wrote before its end is read in any case.
        run_lives = live and recorder.started is not None and os.getppid() == recorder.started.pid
        lines, offset = read_lines(record, offset)
        recorder.write([parse(line) for line in lines])
        if recorder.ended:
            return recorder.flow_run
        if recorder.started and not run_lives and not lines:
            recorder.crashed()
            return recorder.flow_run
        if live and recorder.flow_run and time.monotonic() - asked >= CANCEL_SECONDS:
            asked = time.monotonic()
            if recorder.poll() in ("CANCELLING", "CANCELLED") and recorder.started and not cancelled:
                # Once: a second signal would kill a run that has stopped its stages and is about to say so.
                os.kill(recorder.started.pid, signal.SIGTERM)
                cancelled = True
        if live:
            time.sleep(POLL_SECONDS)


def main() -> None:
    """Follow the record of the run that started this process."""
    # The stages need the processor more.
    os.nice(10)
    record, server = Path(sys.argv[1]), configured_server()
    if server is None:
        raise SystemExit("no Prefect server is configured")
    try:
        follow(record, server, live=True)
    except (UnreachableError, httpx.HTTPStatusError) as error:
        reply(record, unreachable=str(error).splitlines()[0])
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
