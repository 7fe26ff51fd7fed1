"""`parrotflow why`."""

import json
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from flows.plan.graph import make_plan
from flows.run.outcome import stage_names
from flows.run.programs import checks, redactor
from flows.run.terminal import plan_table
from stages.runtime.preflight import check_before_run, check_params


def why(
    *targets: Annotated[str, Parameter(completer=stage_names)],
    force: bool = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> None:
    """Show which stages would run, and why.

    Parameters
    ----------
    targets
        Stages of dvc.yaml; all of them when none is named.
    force
        Plan as for `run --force`.
    as_json
        Print a JSON list, for other programs.
    """
    check_params()
    plan = make_plan(targets, force=force)
    if as_json:
        print(json.dumps(plan.to_dict(), indent=1))
        return
    console = Console(highlight=False)
    console.print(plan_table(plan))
    check_before_run([stage.name for stage in plan.to_do])
    if not plan.to_do:
        console.print("\nEverything is up to date.")
        return
    if plan.seconds:
        console.print(f"\nThe stages that may run took {plan.seconds:.0f} s last time.")

    for number, line in enumerate(checks(plan, redactor())):
        console.print(line if number else f"\n{line}", markup=False, soft_wrap=True)
