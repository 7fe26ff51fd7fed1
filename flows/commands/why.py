"""`parrotflow why`."""

from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from flows.plan.graph import make_plan
from flows.run.outcome import AsJson, stage_names
from flows.run.programs import checks, redactor
from flows.run.terminal import plan_table
from stages.runtime.preflight import check_before_run, check_params


def why(
    *targets: Annotated[str, Parameter(completer=stage_names)], force: bool = False, as_json: AsJson = False
) -> dict[str, Any]:
    """Show which stages would run, and why.

    Parameters
    ----------
    targets
        Stages of dvc.yaml; the default is all of them.
    force
        Plan as for `run --force`.
    """
    check_params()
    plan = make_plan(targets, force=force)
    console = Console(highlight=False)
    console.print(plan_table(plan))
    check_before_run([stage.name for stage in plan.to_do])
    if not plan.to_do:
        console.print("\nEverything is up to date.")
        return plan.facts
    if plan.seconds:
        console.print(f"\nThe stages that may run took {plan.seconds:.0f} s last time.")

    for number, line in enumerate(checks(plan, redactor())):
        console.print(line if number else f"\n{line}", markup=False, soft_wrap=not console.is_terminal)
    return plan.facts
