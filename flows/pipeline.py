"""The pipeline as a flow of Prefect, for deployments and workers; `parrotflow run` does the same without Prefect.

The scheduler is the project's own (flows/run/scheduler.py). Prefect starts the flow on a schedule or on demand, shows
what it does, cancels it and asks for approvals; a recorder (flows/show/recorder.py) keeps its pages up to date.
"""

import os
from typing import Any

from flows.environment import prepare_environment
from flows.show.address import configured_server

prepare_environment()
if server := configured_server():
    os.environ.update(server.environment())

# Prefect reads the environment when it is imported.
from prefect import flow  # noqa: E402
from prefect.client.schemas.objects import State  # noqa: E402
from prefect.runtime import flow_run  # noqa: E402
from prefect.states import Cancelled, Completed, Failed  # noqa: E402

from flows.run.pipeline_run import run_pipeline  # noqa: E402
from flows.run.scheduler import RunOptions, RunResult  # noqa: E402
from stages.runtime.entry import run_stage  # noqa: E402


@flow(name="pipeline", persist_result=False)
def pipeline(
    targets: list[str] | None = None,
    force: bool = False,
    downstream: bool = False,
    keep_going: bool = False,
    pull: bool = False,
    wait: bool = False,
) -> State[Any]:
    """Bring the stages of dvc.yaml up to date; the parameters are those of `parrotflow run`."""
    options = RunOptions(tuple(targets or ()), force, downstream, keep_going, pull, wait)
    return prefect_state(run_pipeline(options, name=flow_run.name or "pipeline", flow_run=flow_run.id))


def prefect_state(result: RunResult) -> State[Any]:
    """A run's end as a state of Prefect."""
    match result.state:
        case "Cancelled":
            return Cancelled(message=result.message)
        case "Failed":
            return Failed(message=result.message)
        case name:
            return Completed(name=name, message=result.message)


def main() -> None:
    """Run the whole pipeline: as a flow where a server is configured."""
    state = pipeline(return_state=True) if server else prefect_state(run_pipeline(RunOptions()))
    if not state.is_completed():
        raise SystemExit(1)


if __name__ == "__main__":
    run_stage(main)
