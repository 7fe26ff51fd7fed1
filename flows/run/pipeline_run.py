"""One run from its start to its end: lock, checks, plan, schedule, record, summary; for `parrotflow run` and flows."""

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flows.dvc_repo.cache import low_space
from flows.dvc_repo.lock_file import keep_order, lock_file_of
from flows.dvc_repo.repair import LockFileWatch, repair_after_kill
from flows.plan.graph import PlannedStage, make_plan, remember_seconds
from flows.plan.params import check_params, section_warnings
from flows.project.accept import drop_entries, drop_expired
from flows.run.approval import ask
from flows.run.dvc_server import DvcServer
from flows.run.process import StageRunner
from flows.run.programs import preflight
from flows.run.record import Event, RunEnded, StageEnded, StageStarted, redactor, unhidden
from flows.run.run_lock import run_lock
from flows.run.scheduler import RunOptions, RunResult, Scheduler, run_result, secrets_of
from flows.show.artifacts import run_artifacts
from flows.show.metrics import all_metrics
from flows.show.recording import Recording, recorded
from flows.show.terminal import Terminal


def run_pipeline(options: RunOptions, *, name: str = "`parrotflow run`", flow_run: str | None = None) -> RunResult:
    """Bring the stages of dvc.yaml up to date. Faults of the parameters are reported before anything starts.

    `flow_run`: Prefect's id, where Prefect started this run. Raises UserError.
    """
    with run_lock(name, wait=options.wait), contextlib.closing(DvcServer()) as server:
        check_params()
        for repaired in repair_after_kill():
            print(repaired, flush=True)
        drop_expired()
        plan = make_plan(options.targets, force=options.force, downstream=options.downstream)
        for warning in [*plan.warnings, *section_warnings([stage.name for stage in plan.to_do])]:
            print(f"warning: {warning}", flush=True)
        terminal = Terminal(plan)
        if not plan.to_do:
            terminal.summary({})
            return RunResult("Completed", f"0 of {len(plan.stages)} stages were not up to date")
        lock_files, watch = [lock_file_of(Path(file)) for file in plan.dvc_files], LockFileWatch()
        watch.look_at_all(lock_files, terminal.say)
        keep_order([stage.name for stage in plan])
        secrets = secrets_of(plan)
        for line in [
            *unhidden(secrets),
            *low_space([stage.name for stage in plan.to_do]),
            *preflight(plan, secrets, redactor(secrets)),
        ]:
            print(line, flush=True)
        before = all_metrics(plan)
        with recorded(plan, options, flow_run) as (record, recording):

            def on_event(event: Event) -> None:
                record.write(event)
                terminal.on_event(event)
                if isinstance(event, StageEnded):
                    watch.look_at_all(lock_files, terminal.say)
                if isinstance(event, StageEnded) and event.result == "ran":
                    # Before the next stage starts: the one that publishes shows what is accepted.
                    drop_entries(event.stage)
                if isinstance(event, StageStarted):
                    # Not before: a first stage is not to wait for a recorder that starts.
                    recording.start()

            approve = partial(ask, record=record.path, recorded=recording.has_server, say=terminal.say)
            scheduler = Scheduler(
                plan,
                options,
                StageRunner(server),
                replan=replan,
                on_event=on_event,
                approve=start_recorder_and(approve, recording),
            )
            try:
                with terminal:
                    outcomes = scheduler.run()
            except BaseException as error:
                record.write(RunEnded(state="Failed", message=str(error) or type(error).__name__))
                raise
            watch.look_at_all(lock_files, terminal.say)
            for outcome in outcomes.values():
                if outcome.result == "ran":
                    remember_seconds(outcome.name, outcome.seconds)
            result = run_result(plan, outcomes, cancelled=scheduler.cancelled)
            for artifact in run_artifacts(plan, outcomes, before):
                record.write(artifact)
            record.write(RunEnded(state=result.state, message=result.message))
            terminal.summary(outcomes)
    for line in recording.last_lines(flow_run):
        terminal.say(line)
    return result


def replan(name: str) -> PlannedStage:
    """Plan one stage as things are now."""
    return next(stage for stage in make_plan([name]) if stage.name == name)


def start_recorder_and(
    approve: Callable[[str, Callable[[], bool]], str], recording: Recording
) -> Callable[[str, Callable[[], bool]], str]:
    """`approve`, with a recorder that asks in Prefect's pages, also where no stage has started yet."""

    def start_and_approve(stage: str, given_up: Callable[[], bool]) -> str:
        recording.start()
        return approve(stage, given_up)

    return start_and_approve
