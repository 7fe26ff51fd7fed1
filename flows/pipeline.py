"""The pipeline as a flow: a task for each stage that is not up to date, chained as dvc.yaml says. DVC is the cache.

`parrotflow run`, deployments and sweeps all come through `chain`. Prefect starts each task once those before it have
ended well, tries again what may pass, and shows it all; what a thread cannot do (end a program with all that it has
started, hold a slot) is in flows/run/attempt.py, which knows no Prefect.
"""

import concurrent.futures
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any
from uuid import UUID

from prefect import Flow, Task, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.runtime import flow_run, task_run
from prefect.states import Cancelled, Completed, Failed

from flows.environment import prepare_environment
from flows.pipeline_run import run_pipeline
from flows.run.attempt import Attempts, run_result
from flows.run.outcome import Artifact, RunOptions, RunResult, StageOutcome
from flows.run.pages import PrefectPages, StagePages, watch_for_cancellation
from flows.run.process import stopped_by_signals
from flows.run.server import Server
from flows.run.terminal import say
from stages.runtime.entry import UserError, first_line

POLL_SECONDS = 0.5
"""Between two looks at whether a signal has come: one that another thread gets does not end a wait."""

PAGES_SECONDS = 20.0
"""How long a run waits at its end for Prefect's pages."""

UNATTENDED_PAGES_SECONDS = 120.0
"""The same in a deployment, whose machine may be gone afterwards."""


@flow(name="pipeline", persist_result=False)
def pipeline(
    targets: list[str] | None = None,
    force: bool = False,
    downstream: bool = False,
    keep_going: bool = False,
    pull: bool = False,
    wait: bool = False,
) -> State[Any]:
    """Bring the stages of dvc.yaml up to date; the parameters are those of `parrotflow run`."""
    prepare_environment()
    options = RunOptions(
        tuple(targets or ()), force=force, downstream=downstream, keep_going=keep_going, pull=pull, wait=wait
    )
    state = state_of(run_pipeline(options, name=flow_run.name or "pipeline", carry_out=chain))
    bound_the_end_of_a_deployment(failed=not state.is_completed())
    return state


def chain(run: Attempts, finish: Callable[[], Iterable[Artifact]]) -> None:
    """Run the stages of a plan as tasks of the calling flow run, then show the artifacts that `finish` returns."""

    def may_pass(attempted: "Task[..., Any]", task_run: TaskRun, state: State[Any]) -> bool:
        return run.is_tried_again(attempted.name)

    @task(cache_policy=NO_CACHE, persist_result=False, retry_condition_fn=may_pass)
    def attempt(stage: str, before: Sequence[StageOutcome]) -> State[StageOutcome]:
        """`before` are futures where it is submitted: Prefect waits for them and draws the graph by them."""
        shown = StagePages()
        if task_run.run_count == 1 and run.stages[stage].why:
            shown.lines([f"why: {run.stages[stage].why}"])
        return state_of_stage(run.attempt(stage, task_run.run_count, before, shown))

    with PrefectPages() as pages, stopped_by_signals(run.stop):
        try:
            futures: dict[str, Any] = {}
            for stage in run.plan.to_do:
                own = attempt.with_options(name=stage.name, task_run_name=stage.name, retries=stage.policy.retries)
                before = [futures[name] for name in stage.upstream if name in futures]
                futures[stage.name] = own.submit(stage.name, before)
            wait_for_all([future.wrapped_future for future in futures.values()])
        except BaseException:
            run.stop()
            raise
        if run.fault:
            raise run.fault
        for artifact in finish():
            pages.show(artifact)


def wait_for_all(threads: Collection["Future[Any]"]) -> None:
    """Wait for tasks. Raises what Prefect itself has raised in one."""
    left = {*threads}
    while left:
        ended, left = concurrent.futures.wait(left, POLL_SECONDS)
        for thread in ended:
            thread.result()


def state_of_stage(outcome: StageOutcome) -> State[Any]:
    """A stage's outcome as a state of Prefect, which carries it to the stages after it."""
    message = outcome.message or f"{outcome.seconds:.1f} s"
    match outcome.result:
        case "failed":
            return Failed(message=message)
        case "stopped":
            return Cancelled(message=message)
        case result:
            return Completed(name=result.capitalize(), message=message, data=outcome)


def state_of(result: RunResult) -> State[Any]:
    """A run's end as a state of Prefect."""
    match result.state:
        case "Cancelled":
            return Cancelled(message=result.message)
        case "Failed":
            return Failed(message=result.message)
        case name:
            return Completed(name=name, message=result.message)


class OwnFlow(Flow[..., State[Any]]):
    """A flow whose parameters are JSON already: to convert them Prefect would import FastAPI, for half a second."""

    def serialize_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return them unchanged."""
        return parameters


def in_flow_run(
    name: str,
    parameters: Mapping[str, Any],
    server: Server,
    run: Attempts,
    finish: Callable[[], Iterable[Artifact]],
    *,
    is_all: bool,
) -> None:
    """`chain` in a flow run of its own, on a server that is up.

    If the server goes away, the stages come to their end all the same, and Prefect tries for some minutes to tell it.
    Where that `is_all` that the process does, it ends after `PAGES_SECONDS` with the run's exit code. Raises UserError
    where Prefect cannot begin.
    """
    ended: list[threading.Timer | None] = []
    raised: list[BaseException] = []
    shown = ""

    def work(**options: Any) -> State[Any]:
        nonlocal shown
        watch_for_cancellation(UUID(flow_run.id), run.stop)
        if server.has_pages:
            shown = f"In Prefect's pages: {server.pages}/runs/flow-run/{flow_run.id}"
            say(shown)
        try:
            chain(run, finish)
        except BaseException as error:
            raised.append(error)
            raise
        result = run_result(run)
        failed = result.state in ("Failed", "Cancelled")
        ended.append(bound_the_end(PAGES_SECONDS, failed=failed) if is_all else None)
        return state_of(result)

    logging.raiseExceptions = False  # else Prefect prints each time that its server does not take a line
    own = OwnFlow(work, name=name, persist_result=False)
    try:
        own(**parameters, return_state=True)
    except Exception as error:
        if not (ended or raised):
            raise UserError(f"Prefect's server at {server.api}: {first_line(error)}; `dvc repro` needs none") from error
    else:
        for timer in filter(None, ended):
            timer.cancel()
    if raised:
        raise raised[0]
    say(shown if server.has_pages else "To look at this run and earlier ones: parrotflow ui")


def bound_the_end(seconds: float, *, failed: bool = False) -> threading.Timer:
    """End this process after `seconds`, unless Prefect has reported the run's end to its server by then."""

    def end() -> None:
        say("warning: Prefect's server went away; every result is kept, its pages lack the end")
        os._exit(1 if failed else 0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


def bound_the_end_of_a_deployment(*, failed: bool) -> None:
    """The same for a process that Prefect has started for this flow run and nothing else."""
    if os.environ.get("PREFECT__FLOW_RUN_ID") == flow_run.id:
        bound_the_end(UNATTENDED_PAGES_SECONDS, failed=failed)


if __name__ == "__main__":
    # Prefect reads its settings when it is imported, so the command comes first.
    os.execv(sys.executable, [sys.executable, "-m", "flows.cli", "run"])
