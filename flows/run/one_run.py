"""Prepare a run: lock, repairs, plan, checks. This module does not import Prefect."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from flows.dvc_repo import repair_after_kill, require_writable_cache
from flows.plan.changes import MISSING_REASON
from flows.plan.graph import Plan, make_plan
from flows.run.dvc_process import start_fork_server
from flows.run.locks import run_lock
from flows.run.outcome import RunOptions
from flows.run.programs import checks, redactor, stage_environment
from flows.run.terminal import NodeRow, Terminal, plan_table
from stages.runtime.errors import UserError
from stages.runtime.preflight import check_before_run, check_params


@dataclass(frozen=True)
class PlannedRun:
    """A planned and checked run."""

    plan: Plan
    options: RunOptions
    terminal: Terminal
    environment: dict[str, str]
    """The environment variables of the stages."""
    forecast: list[str] = field(default_factory=list)
    """The lines that its stages' checks printed."""


@contextmanager
def locked_folder(options: RunOptions) -> Iterator[None]:
    """Hold the folder's lock; check the parameters and repair what a kill left. Raises UserError."""
    with run_lock("`parrotflow run`", wait=options.wait):
        check_params()
        for line in repair_after_kill():
            print(line, flush=True)
        yield


def planned_run(options: RunOptions) -> PlannedRun:
    """Plan a run and show the plan, or the summary if all stages are up to date. Raises UserError."""
    plan = make_plan(options.targets, force=options.force)
    data = [stage for stage in plan if stage.name.endswith(".dvc") and not options.pull]
    if absent := [stage.name for stage in data if any(reason.new == MISSING_REASON for reason in stage.reasons)]:
        raise UserError(f"{absent[0]}: its data is missing: run `parrotflow run --pull` or `dvc checkout`")
    to_do = [stage.name for stage in plan.to_do]
    check_before_run(to_do)
    terminal = Terminal([NodeRow(stage.name, stage.seconds) for stage in plan.to_do])
    run = PlannedRun(plan, options, terminal, stage_environment(to_do))
    if not plan.to_do:
        run.terminal.summary(plan, {})
        return run
    start_fork_server()
    require_writable_cache()
    run.forecast.extend(checks(plan, redactor(), before_run=True))
    for line in run.forecast:
        run.terminal.say(line)
    run.terminal.console.print(plan_table(plan), "", sep="\n")
    return run
