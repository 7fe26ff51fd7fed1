"""One job of a sweep on a worker: the flow of the deployment `sweep-cell`, which `parrotflow sweep NAME --pool` runs.

A checkout of the worker's own is brought to the sweep's commit, the stages run in a clone within it as in a sweep on
one machine, and results and run-cache go to the DVC remote, the DVC experiment to git's remote.
"""

import os
import re
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Crashed, Failed
from pydantic import Json

from flows import checkout
from flows.deployments import RETRY_DELAYS_SECONDS, as_task, checkout_folder, require_names, source_address
from flows.dvc_repo.cache import push_results
from flows.dvc_repo.git import experiment_ref, git
from flows.environment import prepare_environment
from flows.experiments.cells import Cell
from flows.run.locks import run_lock
from flows.run.outcome import StoppedError
from flows.sweep import clone
from flows.sweep.keys import working_in
from flows.sweep.processes import run_one
from stages.runtime.entry import UnavailableError, UserError


@flow(name="sweep-cell", persist_result=False)
def sweep_cell(commit: str, cell: Json[Cell], targets: list[str], shared: bool = False) -> State[Any]:
    """Bring `targets` of a cell up to date at `commit`, and send off what came of it.

    With `shared` they are stages that other cells need too, and no DVC experiment is made. Ends as failed if a stage
    did for good, which is recorded, and as crashed if the same may succeed later or once the set-up is mended.
    """
    prepare_environment()
    try:
        if not re.fullmatch(r"[a-z0-9-]+", cell.id) or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
            raise UserError(f"{cell.id}, {commit}: expected a cell's id and a commit")
        require_names(*targets, cell.name)
        source, folder = source_address(git(Path(), "remote", "get-url", "origin")), checkout_folder()
        with run_lock(flow_run.name or cell.name, wait=True, folder=folder):
            as_task("checkout", checkout.bring_to_commit, RETRY_DELAYS_SECONDS)(folder, source, commit)
            os.chdir(folder)
            made = clone.CLONES.absolute() / cell.id
            ended = run_one(cell, targets, clone.prepare(cell, commit, made))
            if ended.state != "finished":
                return (Failed if ended.state == "failed" else Crashed)(message=ended.message)
            as_task("push", push, RETRY_DELAYS_SECONDS)(made, targets, None if shared else cell.name)
            clone.discard(made)
    except StoppedError as error:
        return Cancelled(message=str(error))
    except (UserError, DvcException, OSError) as error:
        # Of this machine or its set-up, not of the cell: once mended, the same command tries it again.
        return Crashed(message=str(error))
    return Completed()


def push(made: Path, targets: list[str], name: str | None) -> None:
    """Bring a clone's results to the DVC remote and its DVC experiment, if it is to be one, to git's remote."""
    folder = made / git(Path(), "rev-parse", "--show-prefix")
    with working_in(folder):
        push_results(targets)
    if name:
        clone.save_experiment(folder, name, targets)
        ref = experiment_ref(checkout.head(Path()), name)
        git(Path(), "push", "--quiet", "--force", "origin", f"{ref}:{ref}", error=UnavailableError)
