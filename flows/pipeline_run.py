"""One run from its start to its end: lock, checks, plan, stages, summary. Who chains the stages is given."""

import contextlib
import threading
from collections.abc import Callable, Iterable

from flows.dvc_repo.cache import low_space
from flows.dvc_repo.lock_file import keep_order, repair_after_kill
from flows.plan.graph import PlannedStage, make_plan, remember_seconds
from flows.plan.settings import check_params, section_warnings
from flows.project.accept import drop_entries, drop_expired
from flows.run.attempt import Attempts, run_result
from flows.run.dvc_server import DvcServer
from flows.run.locks import run_lock
from flows.run.outcome import Event, RunOptions, RunResult, StageEnded
from flows.run.process import StageRunner
from flows.run.programs import preflight, redactor, secrets_of, unhidden
from flows.show.artifacts import Artifact, read_before, run_artifacts
from flows.show.terminal import Terminal

CarryOut = Callable[[Attempts, Callable[[], Iterable[Artifact]]], None]
"""Runs the stages, then calls the second argument, and shows what that gives."""


def run_pipeline(options: RunOptions, *, name: str = "`parrotflow run`", carry_out: CarryOut) -> RunResult:
    """Bring the stages of dvc.yaml up to date. Faults of the parameters are reported before anything starts.

    `carry_out` is called where there is something to do. Raises UserError.
    """
    with run_lock(name, wait=options.wait):
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
        one_at_a_time = threading.Lock()
        keep_order([stage.name for stage in plan])
        secrets = secrets_of(plan)
        for line in [
            *unhidden(secrets),
            *low_space([stage.name for stage in plan.to_do]),
            *preflight(plan, secrets, redactor(secrets)),
        ]:
            print(line, flush=True)
        before = read_before(plan)

        def on_event(event: Event) -> None:
            terminal.on_event(event)
            if isinstance(event, StageEnded) and event.outcome.result == "ran":
                with one_at_a_time:  # before the next stage starts: the one that publishes shows what is accepted
                    drop_entries(event.stage)

        with contextlib.closing(DvcServer()) as server:
            run = Attempts(plan, options, StageRunner(server), replan, on_event)

            def finish() -> Iterable[Artifact]:
                terminal.stop()
                for outcome in run.outcomes.values():
                    if outcome.result == "ran":
                        remember_seconds(outcome.name, outcome.seconds)
                terminal.summary(run.outcomes)
                return run_artifacts(plan, run.outcomes, before)

            with terminal:
                carry_out(run, finish)
        return run_result(run)


def replan(name: str) -> PlannedStage:
    """Plan one stage as things are now."""
    return next(stage for stage in make_plan([name]) if stage.name == name)
