"""`parrotflow run`."""

from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

from flows.dvc_repo import fetch_run_cache
from flows.run.one_run import locked_folder, planned_run
from flows.run.outcome import AsJson, RunOptions
from flows.run.report import run_facts
from flows.run.server import start_server

DEFAULTS = RunOptions()


def run(
    options: Annotated[RunOptions, Parameter(name="*", show_default=False)] = DEFAULTS, *, as_json: AsJson = False
) -> dict[str, Any]:
    """Run the stages that are not up to date: all, or the targets and what they depend on."""
    with locked_folder(options):
        if options.pull:
            fetch_run_cache()
        server = start_server()
        planned = planned_run(options)
        if not planned.plan.to_do:
            server.stop(seconds=0)
            return run_facts(planned.plan, {})
        server.reach_directly()
        # Import Prefect, which takes seconds, while the server starts.
        from flows.pipeline import run_name_and_tags, run_stages
        from flows.run.flow_run import in_flow_run

        server.wait()
        result = in_flow_run("pipeline", partial(run_stages, planned), server, *run_name_and_tags(planned))
    facts = run_facts(planned.plan, planned.terminal.outcomes)
    return {"exit_code": result.exit_code, "error": result.message if result.exit_code else ""} | facts
