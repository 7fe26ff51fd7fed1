"""The pipeline under Prefect: `parrotflow run`, or `python -m flows.pipeline`.

First a plan; then a task for each stage that is not clean, after the tasks of its upstreams, independent ones side by
side. DVC is the only cache: Prefect keeps no results. Prefect gives concurrency, states, logs and artifacts.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from flows.environment import prepare_environment

prepare_environment()

# Prefect reads the environment when it is imported.
from prefect import flow, get_run_logger, task  # noqa: E402
from prefect.artifacts import create_markdown_artifact  # noqa: E402
from prefect.cache_policies import NO_CACHE  # noqa: E402
from prefect.client.schemas.objects import State  # noqa: E402
from prefect.futures import PrefectFuture  # noqa: E402
from prefect.states import Completed, Failed  # noqa: E402

from flows.child import Children, StageOutcome, dvc_command  # noqa: E402
from flows.graph import PlannedStage, make_plan  # noqa: E402
from flows.lockfile import sort_lock_file  # noqa: E402
from flows.params import check_params  # noqa: E402
from flows.report import Terminal, outcome_page  # noqa: E402
from stages.formats.entry import UserError, run_stage  # noqa: E402

STAGES_AT_ONCE_VARIABLE = "PARROTFLOW_STAGES_AT_ONCE"


def stages_at_once() -> int:
    """Stages that may run side by side: `PARROTFLOW_STAGES_AT_ONCE`, else 2."""
    value = os.environ.get(STAGES_AT_ONCE_VARIABLE) or "2"
    if not value.isdecimal() or int(value) < 1:
        raise UserError(f"{STAGES_AT_ONCE_VARIABLE}={value}: expected a whole number from 1 on")
    return int(value)


@flow(name="pipeline", persist_result=False)
def pipeline(
    targets: list[str] | None = None,
    force: bool = False,
    downstream: bool = False,
    keep_going: bool = False,
    pull: bool = False,
) -> State[Any]:
    """Bring the stages of dvc.yaml (or `targets` with what they need) up to date.

    `force` runs them whatever DVC knows; `downstream` takes what needs the targets; `keep_going` finishes what does not
    hang on a failure; `pull` fetches missing results from the remote.
    """
    check_params()
    plan = make_plan(targets or (), force=force, downstream=downstream)
    terminal, children = Terminal(), Children()
    outcomes: dict[str, StageOutcome] = {}
    failed = threading.Event()

    @task(task_run_name="{name}", cache_policy=NO_CACHE, persist_result=False)
    def stage_task(name: str, why: str) -> State[Any]:
        logger = get_run_logger()
        if failed.is_set() and not keep_going:
            return Failed(message="not started: another stage failed")
        logger.info("why: %s", why)
        terminal.started(name)

        def on_line(text: str) -> None:
            logger.info("%s", text)
            terminal.line(name, text)

        outcome = children.run(name, dvc_command(name, force=force, pull=pull), on_line)
        outcomes[name] = outcome
        terminal.ended(outcome)
        if outcome.result in ("failed", "stopped"):
            failed.set()
            return Failed(message=outcome.message or outcome.result)
        return Completed(message=outcome.result)

    terminal.planned(plan)
    futures: dict[str, PrefectFuture[Any]] = {}
    with stopped_by_signals(children):
        for stage in plan.to_do:
            futures[stage.name] = stage_task.submit(
                name=stage.name, why=stage.why, wait_for=_upstream(stage, futures), return_state=False
            )
        for future in futures.values():
            future.wait()
    if futures:
        sort_lock_file()
    create_markdown_artifact(outcome_page(plan, outcomes), key="pipeline", description="What ran, and why")
    terminal.summary(plan, outcomes)
    if failed.is_set() or len(outcomes) < len(futures):
        return Failed(message="stopped" if children.stopping else "a stage failed")
    return Completed(message=f"{len(futures)} of {len(plan.stages)} stages were not up to date")


def _upstream(stage: PlannedStage, futures: dict[str, PrefectFuture[Any]]) -> Sequence[PrefectFuture[Any]]:
    return [futures[name] for name in stage.upstream if name in futures]


@contextlib.contextmanager
def stopped_by_signals(children: Children) -> Iterator[None]:
    """While within, Ctrl-C and SIGTERM end the children and let the flow end in order."""

    def stop(number: int, frame: FrameType | None) -> None:
        # The handler returns at once: the main thread goes on waiting for the tasks, which end with their children.
        threading.Thread(target=children.stop).start()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> None:
    """Run the whole pipeline."""
    run()


def run(targets: Sequence[str] = (), **options: bool) -> None:
    """Run the flow from a terminal; leaves with 1 on failure. Faults of the parameters are told before it starts."""
    check_params()
    make_plan(targets)
    state = pipeline(list(targets), **options, return_state=True)
    if not state.is_completed():
        raise SystemExit(1)


if __name__ == "__main__":
    run_stage(main)
