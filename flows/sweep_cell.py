"""One cell of a sweep on a worker, or the stages that cells share: the flow of the deployment `sweep-cell`.

`parrotflow sweep NAME --pool POOL` starts its runs. A checkout of the worker's own is brought to the sweep's commit,
the stages run in a clone within it as in a sweep on one machine, and what came of them is sent off: results and
run-cache to the DVC remote, the DVC experiment to git's remote.
"""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Crashed, Failed
from pydantic import Json

from flows import checkout
from flows.deployments import (
    RETRY_DELAYS_SECONDS,
    SOURCE_VARIABLE,
    as_task,
    checkout_folder,
    has_remote,
    require_names,
    source_address,
)
from flows.dvc_repo.cache import experiment_ref, push_results
from flows.environment import prepare_environment
from flows.experiments.cells import Cell
from flows.experiments.runs import RECORD, Batch
from flows.git import git
from flows.run.locks import run_lock
from flows.run.outcome import StoppedError
from flows.sweep import clone
from flows.sweep.keys import working_in
from flows.sweep.run_cells import run_cells
from stages.runtime.credentials import without_credentials
from stages.runtime.entry import UnavailableError, UserError


@flow(name="sweep-cell", persist_result=False)
def sweep_cell(
    commit: str,
    cell: Json[Cell],
    targets: list[str],
    reports: list[str],
    shared: bool = False,
    retry_delays_seconds: list[float] = RETRY_DELAYS_SECONDS,
) -> State[Any]:
    """Bring `targets` of a cell up to date at `commit`, and send off what came of it, the `reports` among it.

    With `shared` they are stages that other cells need too, and no DVC experiment is made. Ends as failed where a stage
    did for good, which is recorded, and as crashed where the same may succeed later or once the set-up is mended.
    """
    prepare_environment()
    try:
        if not re.fullmatch(r"[a-z0-9-]+", cell.id) or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
            raise UserError(f"{cell.id}, {commit}: expected a cell's id and a commit")
        require_names(*targets, cell.name)
        source, folder = source_address(default_source()), checkout_folder()
        with run_lock(flow_run.name or cell.name, wait=True, folder=folder):
            as_task("checkout", checkout.bring_to_commit, retry_delays_seconds)(folder, source, commit)
            os.chdir(folder)
            if not has_remote():
                shown = without_credentials(source)
                raise UserError(f"{shown}: this commit names no default DVC remote, by which results are shared")
            with tempfile.TemporaryDirectory() as record:
                alone = Batch(f"sweep-cell {flow_run.name}", [cell], targets, reports, (), (), Path(record) / RECORD)
                (run,) = run_cells(alone, commit, {cell.id: {}}, on_worker=True).values()
            if run.state != "finished":
                return Failed(message=run.message) if run.state == "failed" else Crashed(message=run.message)
            made = clone.CLONES.absolute() / cell.id
            as_task("push", push, retry_delays_seconds)(made, targets, None if shared else cell.name)
            clone.discard(made)
    except StoppedError as error:
        return Cancelled(message=str(error))
    except (UserError, DvcException, OSError) as error:
        # Of this machine or its set-up, not of the cell: once mended, the same command tries it again.
        return Crashed(message=str(error))
    return Completed()


def default_source() -> str:
    """Where this worker's folder was cloned from. Raises UserError where it was not."""
    address = git(Path(), "remote", "get-url", "origin", check=False)
    if not address and not os.environ.get(SOURCE_VARIABLE):
        raise UserError(f"{Path.cwd()} has no git remote `origin`; let {SOURCE_VARIABLE} name the repository to run")
    return address


def push(made: Path, targets: list[str], name: str | None) -> None:
    """Bring a clone's results to the DVC remote and its DVC experiment, if it is to be one, to git's remote."""
    folder = made / git(Path(), "rev-parse", "--show-prefix")
    with working_in(folder):
        push_results(targets)
    if name:
        clone.save_experiment(folder, name, targets)
        ref = experiment_ref(checkout.head(Path()), name)
        git(Path(), "push", "--quiet", "--force", "origin", f"{ref}:{ref}", error=UnavailableError)
