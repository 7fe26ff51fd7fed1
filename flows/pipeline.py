"""The pipeline under Prefect: `parrotflow run`, or `python -m flows.pipeline`.

First a plan; then a task for each stage that is not clean, after the tasks of its upstreams, independent ones side by
side. DVC is the only cache: Prefect keeps no results. Prefect gives concurrency, retries, states, logs and artifacts.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, cast

from flows.environment import prepare_environment

prepare_environment()

# Prefect reads the environment when it is imported.
from prefect import flow, get_client, get_run_logger, pause_flow_run, task  # noqa: E402
from prefect.cache_policies import NO_CACHE  # noqa: E402
from prefect.client.schemas.objects import State, StateType  # noqa: E402
from prefect.context import TaskRunContext  # noqa: E402
from prefect.exceptions import FlowPauseTimeout, ObjectNotFound  # noqa: E402
from prefect.futures import PrefectFuture  # noqa: E402
from prefect.runtime import flow_run  # noqa: E402
from prefect.states import Cancelled, Completed, Failed  # noqa: E402
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner  # noqa: E402

from flows import gate, pages  # noqa: E402
from flows.child import Children, StageOutcome  # noqa: E402
from flows.execution import Run  # noqa: E402
from flows.graph import PlannedStage, make_plan  # noqa: E402
from flows.history import remember_code  # noqa: E402
from flows.lockfile import sort_lock_file  # noqa: E402
from flows.params import check_params  # noqa: E402
from flows.torn_lock import mend_torn_lock  # noqa: E402
from flows.workspace import only_run  # noqa: E402
from stages.formats.entry import run_stage  # noqa: E402

CANCEL_SECONDS = 5.0
"""How often a run asks whether it was cancelled in Prefect's UI."""


MANY_THREADS = cast("TaskRunner[PrefectFuture[Any]]", ThreadPoolTaskRunner(max_workers=1000))
"""A thread per stage; how many stages run at once is a matter of `Slots`, which knows what each one needs."""

APPROVAL_SECONDS = 7 * 24 * 3600


_begun: list[Run] = []
"""What `run` has begun before Prefect was there, for the flow to take over."""


class PassingError(Exception):
    """A stage failed for a reason that may pass: Prefect tries it again, as often as its policy says."""


@flow(name="pipeline", persist_result=False, task_runner=MANY_THREADS)
def pipeline(
    targets: list[str] | None = None,
    force: bool = False,
    downstream: bool = False,
    keep_going: bool = False,
    pull: bool = False,
    wait: bool = False,
) -> State[Any]:
    """Bring the stages of dvc.yaml (or `targets` with what they need) up to date.

    `force` runs them whatever DVC knows; `downstream` takes what needs the targets; `keep_going` finishes what does not
    hang on a failure; `pull` fetches missing results from the remote; `wait` waits for another run in this folder.
    """
    with only_run(flow_run.name or "pipeline", wait=wait):
        run = _begun.pop() if _begun else prepared(targets or (), force, downstream, keep_going, pull)
        before = pages.read_metrics(run.plan)
        with run.terminal, stopped_by_signals(run.children), stopped_by_prefect(run.children):
            futures: dict[str, PrefectFuture[Any]] = {}
            for stage in run.plan.to_do:
                attempts = stage_task.with_options(
                    retries=stage.policy.retries, retry_delay_seconds=stage.policy.retry_delay_seconds
                )
                upstream = [futures[name] for name in stage.upstream if name in futures]
                futures[stage.name] = attempts.submit(stage.name, run, return_state=False, wait_for=upstream)
            for future in futures.values():
                future.wait()
        for file in run.plan.dvc_files if futures else ():
            sort_lock_file(Path(file))
        remember_code(Path(file) for stage in run.plan for file in stage.code)
        pages.publish(run.plan, run.outcomes, before)
        run.terminal.summary(run.outcomes)
        return final_state(run)


def prepared(targets: Sequence[str], force: bool, downstream: bool, keep_going: bool, pull: bool) -> Run:
    """Check the parameters, mend what a kill left, and plan."""
    check_params()
    if mend_torn_lock():
        print("DVC's table of locks was cut off by a kill or a power failure: removed, nothing is lost", flush=True)
    return Run(make_plan(targets, force=force, downstream=downstream), force=force, pull=pull, keep_going=keep_going)


def final_state(run: Run) -> State[Any]:
    """The run's state in Prefect."""
    results = {outcome.result for outcome in run.outcomes.values()}
    refused = [outcome for outcome in run.outcomes.values() if outcome.result == "refused"]
    if run.children.stopping:
        return Cancelled(message="stopped; the same command goes on")
    if "failed" in results or (len(run.outcomes) < len(run.plan.to_do) and not refused):
        return Failed(
            message="; ".join(f"{o.name}: {o.message}" for o in run.outcomes.values() if o.result == "failed")
        )
    if refused:
        return Completed(name="Refused", message=refused[0].message)
    return Completed(message=f"{len(run.plan.to_do)} of {len(run.plan.stages)} stages were not up to date")


@task(task_run_name="{name}", cache_policy=NO_CACHE, persist_result=False)
def stage_task(name: str, run: Run) -> State[Any]:
    """One stage: pass its gate, have it executed, pass on what it says, say how it ended."""
    logger, stage = get_run_logger(), run.stages[name]
    if any(before in run.outcomes and run.outcomes[before].result == "refused" for before in stage.upstream):
        run.end(StageOutcome(name, "refused", 0.0, "what it needs was refused"))
        return Completed(name="Refused", message="what it needs was refused")
    if not run.given_up and (refusal := refused(stage)):
        logger.warning("refused:\n%s", refusal)
        run.end(StageOutcome(name, "refused", 0.0, refusal))
        return Completed(name="Refused", message=refusal)
    logger.info("why: %s", stage.why)
    execution, progress = run.execution(name), pages.ProgressArtifact(name)
    for line in execution.lines():
        logger.info("%s", line)
        progress.see(line)
    if (outcome := execution.outcome) is None:
        return Cancelled(message="not started: another stage failed, or the run was stopped")
    if outcome.passing and attempts_left(stage):
        run.forget(name)
        raise PassingError(outcome.message)
    run.end(outcome)
    if outcome.result in ("failed", "stopped"):
        run.failed.set()
        return Failed(message=outcome.message or outcome.result)
    return Completed(name=outcome.result.capitalize(), message=f"{outcome.seconds:.1f} s")


def attempts_left(stage: PlannedStage) -> bool:
    """Whether Prefect would try this task again."""
    context = TaskRunContext.get()
    return context is not None and context.task_run.run_count <= stage.policy.retries


def refused(stage: PlannedStage) -> str:
    """Why the stage may not run: the table of its gate, or that a person said no. Empty where it may."""
    verdicts = gate.judge(stage.policy.gate)
    table = gate.table(verdicts)
    if verdicts:
        pages.gate_page(stage.name, table)
    if not all(verdict.holds for verdict in verdicts):
        return table
    if stage.policy.approval and not approved(stage.name):
        return "not approved"
    return ""


def approved(name: str) -> bool:
    """Pause until someone resumes the run in Prefect's UI with yes or no; a week without an answer is a no."""
    try:
        return pause_flow_run(wait_for_input=bool, timeout=APPROVAL_SECONDS, poll_interval=2, key=f"approve-{name}")
    except FlowPauseTimeout:
        return False


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


@contextlib.contextmanager
def stopped_by_prefect(children: Children) -> Iterator[None]:
    """While within, a cancellation in Prefect's UI ends the children. Prefect itself tells only runs of its workers."""
    ended, identity = threading.Event(), flow_run.id

    def watch() -> None:
        with get_client(sync_client=True) as client:
            while not ended.wait(CANCEL_SECONDS):
                # A server that does not answer for a while cancels nothing.
                with contextlib.suppress(ObjectNotFound, OSError, RuntimeError):
                    state = client.read_flow_run(identity).state
                    if state and state.type in (StateType.CANCELLING, StateType.CANCELLED):
                        children.stop()
                        return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()


def main() -> None:
    """Run the whole pipeline."""
    run()


def run(
    targets: Sequence[str] = (),
    *,
    force: bool = False,
    downstream: bool = False,
    keep_going: bool = False,
    pull: bool = False,
    wait: bool = False,
) -> None:
    """Run the flow from a terminal; leaves with 1 on failure.

    Faults of the parameters are told before anything starts. Stages that wait for nothing begin while Prefect starts.
    """
    with only_run("`parrotflow run`", wait=wait):
        begun = prepared(targets, force, downstream, keep_going, pull)
        _begun.append(begun)
        with stopped_by_signals(begun.children):
            try:
                begun.terminal.open()
                begun.begin_what_can()
                state = pipeline(list(targets), force, downstream, keep_going, pull, wait, return_state=True)
            except BaseException:
                begun.children.stop()
                raise
    if not state.is_completed():
        raise SystemExit(1)


if __name__ == "__main__":
    run_stage(main)
