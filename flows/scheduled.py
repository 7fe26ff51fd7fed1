"""An unattended run: the flow of the deployments in prefect.yaml, and of `parrotflow serve`.

Checkout, pull, pipeline (with its gate), push, commit. Each is a task: Prefect shows it, and retries it where that can
help. No result is lost because a network fails: what could not be pushed is pushed by the next run.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from flows.environment import prepare_environment

prepare_environment()

# Prefect reads the environment when it is imported.
from prefect import flow, get_run_logger, task  # noqa: E402
from prefect.cache_policies import NO_CACHE  # noqa: E402
from prefect.client.schemas.objects import State  # noqa: E402
from prefect.runtime import flow_run  # noqa: E402
from prefect.states import Completed, Failed  # noqa: E402

from flows.deploy import checkout  # noqa: E402
from flows.deploy.unattended import (  # noqa: E402
    RETRY_DELAYS_SECONDS,
    checkout_folder,
    dvc,
    has_remote,
    require_names,
    source_address,
    with_retries,
)
from flows.dvc_repo.cache import push_results  # noqa: E402
from flows.dvc_repo.experiments import experiment_ref  # noqa: E402
from flows.experiments.experiment import results_folder  # noqa: E402
from flows.experiments.results import compute, summary, write_results  # noqa: E402
from flows.experiments.runs import RECORD, recorded_runs  # noqa: E402
from flows.pipeline import pipeline  # noqa: E402
from flows.plan.graph import make_plan  # noqa: E402
from flows.plan.params import check_params  # noqa: E402
from flows.project.compose import composed_text, write_params  # noqa: E402
from flows.run.run_lock import run_lock  # noqa: E402
from flows.sweep.sweep import sweep  # noqa: E402
from stages.runtime.entry import UserError  # noqa: E402


@flow(name="scheduled", persist_result=False)
def scheduled(
    branch: str = "main",
    results_branch: str | None = None,
    targets: list[str] | None = None,
    overrides: list[str] | None = None,
    pull: bool = True,
    push: bool = True,
    publish: bool = True,
    experiment: str | None = None,
    size: Literal["small", "full"] = "small",
    retry: bool = False,
    retry_delays_seconds: list[float] = RETRY_DELAYS_SECONDS,
) -> State[Any]:
    """Bring a checkout up to date, run what changed, push the results.

    `branch` is run, `results_branch` is where dvc.lock and reports are committed: `results`, or `runs/NAME` where
    `overrides` (as `parrotflow params` takes them) make it another experiment. `targets` are stages; without `publish`
    those behind a gate are left out. With `experiment`, the name of a file in experiments/, its cells are run instead
    (`size`, `retry`: as `parrotflow sweep` takes them), and its tables are committed to `experiments/NAME`. `pull` and
    `push` use the DVC remote and its run-cache. Which repository is run is no parameter, since its code is executed:
    the environment of the worker says so (`PARROTFLOW_SOURCE`).
    """
    logger, name = get_run_logger(), flow_run.name or "run"
    address, folder = source_address("."), checkout_folder()
    own = f"experiments/{experiment}" if experiment else f"runs/{name}"
    kept = results_branch or (own if experiment or overrides else "results")
    try:
        require_names(branch, kept, *(targets or ()), *([experiment] if experiment else []))
        checkout.require_branch_name(kept)
        with run_lock(name, wait=True, folder=folder, say=logger.info):
            with_retries(checkout_task, retry_delays_seconds)(folder, address, branch, kept)
            os.chdir(folder)
            if overrides:
                write_params(composed_text(overrides))
            check_params()
            remote = has_remote()
            pulled = pull and remote and succeeds(with_retries(pull_task, retry_delays_seconds), targets)
            tables: tuple[str, ...] = ()
            if experiment:
                tables = (results_folder(experiment, size).as_posix(),)
                result = swept(experiment, size, retry=retry)
            else:
                stages = wanted(targets, publish)
                if stages is not None and not stages:
                    return Completed(message="every stage that was asked for is behind a gate, and publish is off")
                result = pipeline(stages, pull=pulled, wait=True, return_state=True)
                if not result.is_completed():
                    for line in checkout.left_out_by_git(folder, result.message or ""):
                        logger.error("%s", line)
                    return result
            pushed = not (push and remote) or succeeds(with_retries(push_task, retry_delays_seconds))
            commit = commit_task(folder, f"Results of {name}", tables)
            if experiment and push:
                pushed &= succeeds(with_retries(push_experiments_task, retry_delays_seconds), experiment, size, remote)
            if not succeeds(with_retries(push_commits_task, retry_delays_seconds), folder, kept):
                return Failed(
                    message=f"git's remote did not take {kept}; {folder} keeps it, the next run pushes it too"
                )
    except UserError as error:
        logger.error("%s", error)
        return Failed(message=str(error))
    logger.info("%s", f"committed {commit[:12]} to {kept}" if commit else "nothing changed")
    if not pushed and result.is_completed():
        return Completed(name="NotPushed", message="the DVC remote did not answer; the next run pushes this one's too")
    return result


def swept(experiment: str, size: Literal["small", "full"], *, retry: bool) -> State[Any]:
    """Run an experiment's cells and write its tables. Failed if a cell has no result; the others are kept all the same.

    The cells are recorded as a run of the pipeline is: each stage of each cell is a task in Prefect's pages.
    """
    missing = sweep(experiment, size, retry=retry, wait=True, flow_run=flow_run.id)
    results = compute(experiment, size)
    write_results(experiment, size, results)
    if missing:
        return Failed(message="\n".join(missing))
    return Completed(message="\n".join(summary(results)))


def succeeds(work: Any, *arguments: Any) -> bool:
    """Whether a task succeeded in the end. Its failure is seen in Prefect, and does not end the run."""
    return bool(work(*arguments, return_state=True).is_completed())


def wanted(targets: Sequence[str] | None, publish: bool) -> list[str] | None:
    """The stages to run: the targets, or None for all; without `publish` those that no gate guards, maybe none."""
    if publish:
        return list(targets) if targets else None
    plan = make_plan(targets or ())
    guarded: set[str] = set()
    for stage in plan:
        if stage.policy.gate or stage.policy.approval or guarded & set(stage.upstream):
            guarded.add(stage.name)
    return [stage.name for stage in plan if stage.name not in guarded]


@task(name="checkout", cache_policy=NO_CACHE, persist_result=False)
def checkout_task(folder: Path, source: str, branch: str, results_branch: str) -> str:
    """Clone or update the checkout."""
    return checkout.bring_up_to_date(folder, source, branch, results_branch)


@task(name="pull", cache_policy=NO_CACHE, persist_result=False)
def pull_task(targets: list[str] | None) -> None:
    """Fetch the results that dvc.lock names, and the run-cache, from the DVC remote."""
    dvc("pull", "--run-cache", "--allow-missing", *(targets or ()))


@task(name="push", cache_policy=NO_CACHE, persist_result=False)
def push_task() -> None:
    """Bring every result and the run-cache to the DVC remote."""
    push_results()


@task(name="commit", cache_policy=NO_CACHE, persist_result=False)
def commit_task(folder: Path, message: str, tables: Sequence[str] = ()) -> str | None:
    """Commit dvc.lock and reports, and an experiment's tables, to the branch of results, in the checkout."""
    return checkout.commit_results(folder, message, tables)


@task(name="push experiments", cache_policy=NO_CACHE, persist_result=False)
def push_experiments_task(experiment: str, size: str, remote: bool) -> None:
    """Bring the cells' DVC experiments to git's remote, and their results to the DVC remote if there is one."""
    runs = recorded_runs(results_folder(experiment, size) / RECORD)
    # By their whole names: one cell may have experiments of several commits.
    named = dict.fromkeys(experiment_ref(run.baseline, run.experiment) for run in runs if run.experiment)
    here = [name for name in named if checkout.has_ref(Path(), name)]
    if here:
        dvc("exp", "push", *([] if remote else ["--no-cache"]), "origin", *here)


@task(name="git push", cache_policy=NO_CACHE, persist_result=False)
def push_commits_task(folder: Path, results_branch: str) -> None:
    """Bring the commits of this run, and of earlier ones that failed to, to git's remote."""
    checkout.push_commits(folder, results_branch)
