"""Do work in a Prefect flow run of this process."""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from prefect import flow, tags
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from flows.run.outcome import RunResult
from flows.run.server import Server
from flows.run.terminal import print_line
from stages.runtime.errors import UserError, first_line

END_SECONDS = 20.0
"""The time that a finished run waits for Prefect's server."""


def result_state(result: RunResult) -> State[Any]:
    """Return a run's result as a Prefect state."""
    match result.state:
        case "Cancelled":
            return Cancelled(message=result.message)
        case "Failed":
            return Failed(message=result.message)
        case name:
            return Completed(name=name, message=result.message)


def in_flow_run(
    name: str, work: Callable[[], Awaitable[RunResult]], server: Server, run_name: str, with_tags: Collection[str] = ()
) -> RunResult:
    """Do `work` in a run of the flow `name`, on a running server. Raises UserError if Prefect cannot start the run.

    If the server goes away, the work continues. At the end, Prefect would try for minutes to report it, so the process
    ends after `END_SECONDS` with the exit code of the result.
    """
    timers: list[threading.Timer] = []
    results: list[RunResult] = []
    raised: list[BaseException] = []

    async def begin() -> None:
        await run(return_state=True)

    @flow(name=name, flow_run_name=lambda: run_name, persist_result=False, validate_parameters=False)
    async def run() -> Any:
        try:
            results.append(await work())
        except BaseException as error:
            raised.append(error)
            raise
        timers.append(exit_without_server(END_SECONDS, results[0].exit_code))
        shown = f"In the Prefect UI: {server.pages}/runs/flow-run/{flow_run.id}"
        print_line(shown if server.pages else "To look at this run and earlier ones: parrotflow ui")
        return result_state(results[0])

    logging.raiseExceptions = False  # else Prefect prints each line that its server does not accept
    try:
        with tags(*with_tags):
            asyncio.run(begin())
    except Exception as error:
        if not (results or raised):
            fault = f"Prefect's server at {server.api}: {first_line(error)}"
            raise UserError(f"{fault}; `dvc repro` runs the stages without a server") from error
    for timer in timers:
        timer.cancel()
    if raised:
        raise raised[0]
    return results[0]


def exit_without_server(seconds: float, exit_code: int) -> threading.Timer:
    """Start a timer that ends this process; the caller cancels it once Prefect has reported the run's end."""

    def end() -> None:
        print_line("warning: Prefect's server went away; all results are kept, but its record of the run is incomplete")
        os._exit(exit_code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer
