"""The pipeline as a flow of Prefect: a task for each stage that is not up to date, chained as dvc.yaml says.

`parrotflow run` and deployments both come through `run_stages`. Flow and tasks are async, in one event loop. A task
begins once those before it have ended, and its stage only if they ended well; Prefect waits before a retry and records
every state. A signal cancels the tasks, also those that wait, and a cancelled one ends its stage. DVC is the cache.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

from prefect import Task, flow, get_run_logger, task
from prefect.artifacts import acreate_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.runtime import flow_run, task_run
from prefect.states import Cancelled, Completed, Failed

from flows.plan.graph import PlannedStage
from flows.run.one_run import Run
from flows.run.outcome import RunResult, StageOutcome
from flows.run.report import outcome_page
from flows.run.server import Server
from flows.run.terminal import say
from stages.runtime.errors import UserError, first_line

LETTERS_A_LOG = 20_000
"""Prefect Cloud cuts off an entry above 25,000 bytes."""

END_SECONDS = 20.0
"""How long a run waits at its end for Prefect's server."""


async def run_stages(run: Run) -> None:
    """Run the stages of a plan as tasks of the calling flow run, then write its artifact."""
    faults: list[Exception] = []

    def is_tried_again(attempted: "Task[..., Any]", of_task: TaskRun, state: State[Any]) -> bool:
        return attempted.name in run.retrying

    @task(cache_policy=NO_CACHE, persist_result=False, retry_condition_fn=is_tried_again)
    async def attempt(name: str, may_start: bool) -> Any:
        if not may_start:
            return Cancelled(message="not started: a stage that it depends on did not end well")
        log, stage = log_entries(), stages[name]
        if task_run.run_count == 1 and stage.why:
            log([f"why: {stage.why}"])
        try:
            return state_of_stage(await run.attempt(stage, task_run.run_count or 1, log))
        except asyncio.CancelledError:
            return Cancelled(message="not started")
        except Exception as error:  # of this program, not of a stage
            faults.append(error)
            stop()
            raise

    async def after_others(stage: PlannedStage) -> State[Any]:
        before = [chain[name] for name in stage.upstream if name in chain]
        if before:
            await asyncio.wait(before)
        policy = stage.policy
        own = attempt.with_options(
            name=stage.name,
            task_run_name=stage.name,
            retries=policy.retries,
            retry_delay_seconds=policy.retry_delay_seconds,
        )
        ends = [one.result() for one in before]
        may_start = all(end.is_completed() for end in ends)
        # Prefect's types say `State` of what is a coroutine here.
        state = own(stage.name, may_start, wait_for=edges(ends), return_state=True)
        return await cast("Awaitable[State[Any]]", state)

    def stop() -> None:
        if not run.stopped:
            run.stopped = True
            for waiting in chain.values():
                waiting.cancel()

    stages = {stage.name: stage for stage in run.plan.to_do}
    chain = {name: asyncio.create_task(after_others(stage)) for name, stage in stages.items()}
    with called_by_signals(stop), run.terminal:
        await asyncio.wait(chain.values())
    if faults:
        raise faults[0]
    for ended in chain.values():
        if not ended.cancelled() and (error := ended.exception()):
            raise error
    run.finish()
    with suppress(Exception):  # a server that is away costs the artifact, not the run
        async with asyncio.timeout(END_SECONDS):
            await show(run)


def edges(ends: Sequence[State[Any]]) -> list[State[Any]]:
    """Return states that a task can wait for whether or not these stages ended well: edges of the graph alone.

    Prefect leaves a task after a failed one pending, and its page draws that task up to the present day, so the rest
    becomes too small to see.
    """
    return [Completed(data=end.name, state_details=end.state_details) for end in ends]


@contextmanager
def called_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """While within, Ctrl-C, SIGTERM and a closed terminal call `stop`. `nohup` ignores SIGHUP on purpose."""
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}  # of Prefect, for SIGTERM
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def log_entries() -> Callable[[Sequence[str]], None]:
    """Return what logs lines of the calling task, those printed at once in one entry: each costs as much as thousands
    of letters."""
    logger = get_run_logger()

    def log(texts: Sequence[str]) -> None:
        entry: list[str] = []
        letters = 0
        for text in texts:
            if entry and letters + len(text) > LETTERS_A_LOG:
                logger.info("%s", "\n".join(entry))
                entry, letters = [], 0
            entry.append(text)
            letters += len(text)
        logger.info("%s", "\n".join(entry))

    return log


async def show(run: Run) -> None:
    """Write the artifact of a flow run, its page."""
    page = outcome_page(run.plan, run.outcomes)
    await acreate_markdown_artifact(page, key="pipeline", description="What ran, and why")


def state_of_stage(outcome: StageOutcome) -> State[Any]:
    """A stage's outcome as a state of Prefect."""
    message = outcome.message or f"{outcome.seconds:.1f} s"
    match outcome.result:
        case "failed":
            return Failed(message=message)
        case "stopped":
            return Cancelled(message=message)
        case result:
            return Completed(name=result.capitalize(), message=message)


def state_of(result: RunResult) -> State[Any]:
    """A run's end as a state of Prefect."""
    match result.state:
        case "Cancelled":
            return Cancelled(message=result.message)
        case "Failed":
            return Failed(message=result.message)
        case name:
            return Completed(name=name, message=result.message)


def in_flow_run(run: Run, server: Server) -> None:
    """`run_stages` in a flow run of its own, on a server that is up. Raises UserError if Prefect cannot begin.

    If the server goes away, the stages come to their end all the same; then Prefect would try for minutes to report it,
    so the process ends after `END_SECONDS` with the run's exit code.
    """
    timers: list[threading.Timer] = []
    raised: list[BaseException] = []

    @flow(name="pipeline", persist_result=False, validate_parameters=False)
    async def pipeline() -> Any:
        try:
            await run_stages(run)
        except BaseException as error:
            raised.append(error)
            raise
        timers.append(bound_the_end(END_SECONDS, run.result().exit_code))
        shown = f"In the Prefect UI: {server.pages}/runs/flow-run/{flow_run.id}"
        say(shown if server.pages else "To look at this run and earlier ones: parrotflow ui")
        return state_of(run.result())

    logging.raiseExceptions = False  # else Prefect prints each time that its server does not take a line
    try:
        asyncio.run(pipeline(return_state=True))  # type: ignore[arg-type]
    except Exception as error:
        if not (timers or raised):
            raise UserError(f"Prefect's server at {server.api}: {first_line(error)}; `dvc repro` needs none") from error
    for timer in timers:
        timer.cancel()
    if raised:
        raise raised[0]


def bound_the_end(seconds: float, exit_code: int) -> threading.Timer:
    """End this process after `seconds`, unless Prefect has reported the run's end to its server by then."""

    def end() -> None:
        say("warning: Prefect's server went away; every result is kept, its record lacks the end")
        os._exit(exit_code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer
