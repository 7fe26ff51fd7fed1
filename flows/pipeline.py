"""The pipeline under Prefect: `parrotflow run`, or `python -m flows.pipeline`.

First a plan; then a task for each stage that is not clean, after the tasks of its upstreams, independent ones side by
side. DVC is the only cache: Prefect keeps no results. Prefect gives concurrency, retries, states, logs and artifacts.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
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
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings  # noqa: E402
from prefect.states import Cancelled, Completed, Failed  # noqa: E402
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner  # noqa: E402

from flows.dvc.lock_file import sort_lock_file  # noqa: E402
from flows.plan.graph import PlannedStage  # noqa: E402
from flows.plan.history import remember_code  # noqa: E402
from flows.run import gate  # noqa: E402
from flows.run.early_start import prepared, run, stopped_by_signals, taken_over  # noqa: E402
from flows.run.execution import Run  # noqa: E402
from flows.run.process import Children, StageOutcome  # noqa: E402
from flows.run.run_lock import run_lock  # noqa: E402
from flows.show import artifacts as pages  # noqa: E402
from stages.runtime.entry import run_stage  # noqa: E402

CANCEL_SECONDS = 5.0
"""How often a run asks whether it was cancelled in Prefect's UI."""


MANY_THREADS = cast("TaskRunner[PrefectFuture[Any]]", ThreadPoolTaskRunner(max_workers=1000))
"""A thread per stage; how many stages run at once is a matter of `Slots`, which knows what each one needs."""

APPROVAL_SECONDS = 7 * 24 * 3600


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
    with run_lock(flow_run.name or "pipeline", wait=wait):
        execution = taken_over() or prepared(targets or (), force, downstream, keep_going, pull)
        before = pages.read_metrics(execution.plan)
        with (
            contextlib.closing(execution.warm_dvc),
            execution.terminal,
            stopped_by_signals(execution.children),
            stopped_by_prefect(execution.children),
        ):
            futures: dict[str, PrefectFuture[Any]] = {}
            for stage in execution.plan.to_do:
                attempts = stage_task.with_options(
                    retries=stage.policy.retries, retry_delay_seconds=stage.policy.retry_delay_seconds
                )
                upstream = [futures[name] for name in stage.upstream if name in futures]
                futures[stage.name] = attempts.submit(stage.name, execution, return_state=False, wait_for=upstream)
            for future in futures.values():
                future.wait()
        for file in execution.plan.dvc_files if futures else ():
            sort_lock_file(Path(file))
        remember_code(Path(file) for stage in execution.plan for file in stage.code)
        pages.publish(execution.plan, execution.outcomes, before)
        execution.terminal.summary(execution.outcomes)
        return final_state(execution)


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


def run_here(*arguments: Any, **options: Any) -> State[Any]:
    """The flow in this process. Without a heartbeat where the server lives no longer than the run: nobody hears it."""
    own_server = "PREFECT_API_URL" not in os.environ
    heartbeat = {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None} if own_server else {}
    with temporary_settings(heartbeat):
        state: State[Any] = pipeline(*arguments, **options)
    return state


def main() -> None:
    """Run the whole pipeline."""
    run(lambda: run_here)


if __name__ == "__main__":
    run_stage(main)
