"""Which Prefect server shows a run, and the process that records it there. Nothing of Prefect is imported here."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from flows.run.record import RecordedStage, RunRecord, RunStarted, replies
from flows.show.address import ServerAddress, configured_server

if TYPE_CHECKING:
    from flows.plan.graph import Plan
    from flows.run.scheduler import RunOptions

END_SECONDS = 2.0
"""How long a run in a terminal waits at its end for its recorder, which then finishes by itself."""

FLOW_END_SECONDS = 60.0
"""The same under Prefect, where the machine may be gone afterwards."""


class Recording:
    """The recorder of one run; none where no server is configured."""

    def __init__(self, record: Path) -> None:
        self.record = record
        self.server: ServerAddress | None = configured_server()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def has_server(self) -> bool:
        """Whether a server is to show the run."""
        return self.server is not None

    def start(self) -> None:
        """Start the recorder, once. It has a session of its own: Ctrl-C is for the run."""
        with self._lock:
            if self.server is None or self._process is not None:
                return
            command = [sys.executable, "-m", "flows.show.recorder", str(self.record)]
            self._process = subprocess.Popen(
                command,
                env=os.environ | self.server.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def last_lines(self, flow_run: str | None) -> Iterator[str]:
        """Wait for the recorder for a bounded time; what to tell the user at the end of the run."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(FLOW_END_SECONDS if flow_run else END_SECONDS)
        told: dict[str, str] = {}
        for message in replies(self.record):
            if "page" in message or "unreachable" in message:
                told = message
        if self._process is not None and "page" not in told:
            problem = told.get("unreachable", self.server.api if self.server else "")
            yield f"warning: Prefect's server does not answer ({problem}); this run is recorded on disk only"
        page = told.get("page")
        yield f"In Prefect's pages: {page}" if page else "To look at this run and earlier ones: parrotflow ui"


@contextlib.contextmanager
def recorded(plan: "Plan", options: "RunOptions", flow_run: str | None) -> Iterator[tuple[RunRecord, Recording]]:
    """The record of a run, and what follows it."""
    with contextlib.closing(RunRecord()) as record:
        stages = tuple(
            RecordedStage(name=stage.name, state=stage.state, why=stage.why, upstream=stage.upstream) for stage in plan
        )
        record.write(
            RunStarted(run=record.run, pid=os.getpid(), options=asdict(options), stages=stages, flow_run=flow_run)
        )
        yield record, Recording(record.path)
