"""Unattended runs: the flow of the deployments in prefect.yaml and of `parrotflow serve`.

Checkout, pull, the stages, push and commit are tasks: Prefect shows them, and retries them if that can help. If the
network fails, no result is lost: the next run pushes it.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import ConcurrencyLimitConfig, State
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import CancelledRun, FailedRun
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import ValidationError

from flows import checkout
from flows.checkout import RETRY_DELAYS_SECONDS, as_task, checkout_folder, require_names, source_address
from flows.dvc_repo import default_remote, fetch_run_cache, push_results
from flows.environment import prepare_environment
from flows.pipeline import run_stages
from flows.project.compose import composed_text
from flows.run.flow_run import result_state
from flows.run.locks import run_lock
from flows.run.one_run import locked_folder, planned_run
from flows.run.outcome import RunOptions
from stages.runtime.atomic import atomic_write
from stages.runtime.errors import UnavailableError, UserError
from stages.runtime.preflight import check_params
from stages.runtime.section import PARAMS_FILE, read_yaml


@flow(name="scheduled", persist_result=False)
async def scheduled(
    branch: str = "main",
    results_branch: str | None = None,
    targets: list[str] | None = None,
    overrides: list[str] | None = None,
    pull: bool = True,
    push: bool = True,
    retry_delays_seconds: list[float] = RETRY_DELAYS_SECONDS,
) -> State[Any]:
    """Bring a checkout of `branch` up to date, run the stages that changed, push the results.

    dvc.lock and the reports are committed to `results_branch`, by default `results`, or `runs/NAME` if there are
    `overrides` (as for `parrotflow params`). `targets` are stages. `pull` and `push` use the DVC remote and its
    run-cache. The repository is not a parameter, because its code is executed: the worker's environment variable
    `PARROTFLOW_SOURCE` sets it.
    """
    prepare_environment()
    logging.getLogger("prefect.engine").addFilter(keeps_record)
    logger, name, wanted = get_run_logger(), flow_run.name or "run", tuple(targets or ())
    kept = results_branch or (f"runs/{name}" if overrides else "results")
    address, folder = source_address("."), checkout_folder()
    try:
        require_names(branch, kept, *wanted)
        with run_lock(name, wait=True, folder=folder, say=logger.info):
            as_task("checkout", checkout.bring_up_to_date, retry_delays_seconds)(folder, address, branch, kept)
            os.chdir(folder)
            if overrides:
                atomic_write(PARAMS_FILE, composed_text(overrides))
            check_params()
            remote, pulled = default_remote(), False
            if pull and remote:
                with suppress(UnavailableError):  # without a remote, outdated stages are computed
                    as_task("pull", fetch_run_cache, retry_delays_seconds)()
                    pulled = True
            state = await stages_up_to_date(RunOptions(wanted, pull=pulled, wait=True))
            if not state.is_completed():
                return state
            pushed = not (push and remote) or succeeds(as_task("push", push_results, retry_delays_seconds))
            commit = as_task("commit", checkout.commit_results)(folder, f"Results of {name}", kept)
            if not succeeds(as_task("git push", checkout.push_commits, retry_delays_seconds), folder, kept):
                return Failed(
                    message=f"could not push {kept} to the git remote; {folder} has it, and the next run pushes it"
                )
    except UserError as error:
        logger.error("%s", error)
        return Failed(message=str(error))
    logger.info("%s", f"committed {commit[:12]} to {kept}" if commit else "nothing changed")
    if not pushed:
        message = "the DVC remote did not answer; the next run also pushes these results"
        if state.name == "Refused":
            return Completed(name=state.name, message=f"{state.message}; {message}")
        return Completed(name="NotPushed", message=message)
    return state


async def stages_up_to_date(options: RunOptions) -> State[Any]:
    """Run the stages that are not up to date in the calling flow run, and return its final state."""
    with locked_folder(options):
        run = planned_run(options)
        if not run.plan.to_do:
            return Completed(message="every stage was up to date")
        return result_state(await run_stages(run))


def keeps_record(record: logging.LogRecord) -> bool:
    """Return False for Prefect's traceback of a failed or cancelled run, which was already reported."""
    return not (record.exc_info and isinstance(record.exc_info[1], FailedRun | CancelledRun))


def succeeds(work: Any, *arguments: Any) -> bool:
    """Run a task; return True if it succeeded. Prefect shows a failure, which does not end the run."""
    return bool(work(*arguments, return_state=True).is_completed())


def served(file: Path = Path("prefect.yaml")) -> list[RunnerDeployment]:
    """Return the deployments of prefect.yaml that need no work pool.

    Raises UserError if Prefect does not accept a key, or if several runs could share the checkout.
    """
    deployments = []
    for entry in read_yaml(file.read_bytes())["deployments"]:
        if entry["entrypoint"].endswith(":sweep_cell"):  # it needs a work pool
            continue
        if "concurrency_limit" not in entry:
            raise UserError(f"{file}: {entry['name']}: no concurrency_limit: its runs share a checkout; add `limit: 1`")
        options = {key: value for key, value in entry.items() if key != "work_pool"}
        try:
            options["concurrency_limit"] = ConcurrencyLimitConfig(**options["concurrency_limit"])
            options["schedules"] = [schedule_of(schedule) for schedule in options.get("schedules", ())]
            signature(RunnerDeployment.from_entrypoint).bind(**options)
        except (TypeError, ValidationError) as error:
            message = " ".join(str(error).split())
            raise UserError(f"{file}: {entry['name']}: `parrotflow serve` cannot take this: {message}") from None
        deployments.append(RunnerDeployment.from_entrypoint(**options))
    return deployments


def schedule_of(written: Mapping[str, Any]) -> DeploymentScheduleCreate:
    """Read an entry of prefect.yaml, which mixes keys of a schedule (`cron`, ...) and of its deployment (`active`)."""
    schedule = {key: value for key, value in written.items() if key not in DeploymentScheduleCreate.model_fields}
    outer = {key: value for key, value in written.items() if key not in schedule}
    return DeploymentScheduleCreate(schedule=schedule, **outer)
