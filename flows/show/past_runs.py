"""`parrotflow ui`: brings the recorded runs into the project's own server, with the times at which they happened."""

import asyncio
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from uuid import UUID

from flows.run.record import Event, RunEnded, RunStarted, parse, read_lines, recorded_runs
from flows.show.address import ServerAddress
from flows.show.recorder import Api, follow


def import_past_runs(server: ServerAddress) -> int:
    """Write to a server what it does not have of the recorded runs; how many that were."""
    api, imported = Api(server), 0
    for record in recorded_runs():
        events = [parse(line) for line in read_lines(record)[0]]
        started = next((event for event in events if isinstance(event, RunStarted)), None)
        if started is None or started.flow_run or is_alive(started.pid, events) or is_complete(api, started.run):
            continue
        flow_run = follow(record, server, live=False)
        asyncio.run(correct_times(flow_run, started.time, events[-1].time))
        imported += 1
    return imported


def is_complete(api: Api, run: str) -> bool:
    """Whether a server knows a run and its end."""
    found = api.post("/flow_runs/filter", {"flow_runs": {"idempotency_key": {"any_": [run]}}})
    return any(item["end_time"] for item in found)


def is_alive(pid: int, events: Iterable[Event]) -> bool:
    """Whether a run still works: then its own recorder, if any, writes it."""
    if any(isinstance(event, RunEnded) for event in events):
        return False
    return Path(f"/proc/{pid}").exists() if Path("/proc/self").exists() else _lives(pid)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


async def correct_times(flow_run: str, started: str, ended: str) -> None:
    """Give a flow run and its artifacts the times of the record: Prefect's API stamps both with the time of the call.

    By Prefect's own models, in the database of this project's server, which `PREFECT_HOME` names.
    """
    from prefect.server.database import provide_database_interface
    from prefect.server.schemas.states import StateType
    from sqlalchemy import update

    db = provide_database_interface()
    identity, begin, end = UUID(flow_run), datetime.fromisoformat(started), datetime.fromisoformat(ended)
    async with db.session_context(begin_transaction=True) as session:
        run = update(db.FlowRun).where(db.FlowRun.id == identity).values(created=begin, total_run_time=end - begin)
        times = {"start_time": begin, "expected_start_time": begin, "end_time": end, "state_timestamp": end}
        await session.execute(run.values(**times))
        states = update(db.FlowRunState).where(db.FlowRunState.flow_run_id == identity)
        running = db.FlowRunState.type == StateType.RUNNING
        await session.execute(states.where(running).values(timestamp=begin))
        await session.execute(states.where(~running).values(timestamp=end))
        artifacts = update(db.Artifact).where(db.Artifact.flow_run_id == identity)
        await session.execute(artifacts.values(created=end, updated=end))
