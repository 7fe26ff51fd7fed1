"""One run until its stages start: lock, repairs, plan, warnings, checks. Prefect is not imported here."""

from collections.abc import Iterator
from contextlib import contextmanager

from flows.dvc_repo import low_space, repair_after_kill
from flows.plan.graph import make_plan
from flows.plan.settings import check_params, section_warnings
from flows.run.attempt import Run
from flows.run.locks import run_lock
from flows.run.outcome import RunOptions
from flows.run.programs import checks, redactor
from flows.run.stage import import_dvc
from flows.run.terminal import Terminal, plan_table


@contextmanager
def locked_folder(options: RunOptions, *, name: str = "`parrotflow run`") -> Iterator[None]:
    """Hold the folder's lock while within; faults of the parameters are refused, and what a kill left is repaired."""
    with run_lock(name, wait=options.wait):
        check_params()
        for line in repair_after_kill():
            print(line, flush=True)
        yield


def planned_run(options: RunOptions) -> Run:
    """Plan a run, and show the plan; without anything to do, that is its end. Raises UserError."""
    plan = make_plan(options.targets, force=options.force, downstream=options.downstream)
    for warning in [*plan.warnings, *section_warnings([stage.name for stage in plan.to_do])]:
        print(f"warning: {warning}", flush=True)
    run = Run(plan, options, Terminal(plan))
    if not plan.to_do:
        run.finish()
        return run
    import_dvc()
    for line in [*low_space([stage.name for stage in plan.to_do]), *checks(plan, redactor(), before_run=True)]:
        print(line, flush=True)
    run.terminal.console.print(plan_table(plan))
    run.terminal.console.print()
    return run
