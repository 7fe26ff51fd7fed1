"""Deployments: how `parrotflow serve` starts them, where their flows work, and how these try a silent remote again.

`parrotflow serve` is `prefect deploy --all`, and a worker for what it deploys, on this machine. Prefect itself reads
prefect.yaml, so every key of it means here what it means on a server with work pools of its own.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from stages.runtime.entry import UnavailableError, UserError, private_state_dir

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import State

PREFECT_YAML = Path("prefect.yaml")

AUTOMATIONS = Path("deploy/automations.yaml")

PREFECT = (sys.executable, "-m", "prefect", "--no-prompt")


def serve_deployments(*, own_server: bool) -> None:
    """Deploy prefect.yaml and run its flow runs, until stopped. Raises UserError for what Prefect does not take."""
    from prefect import get_client

    pools = work_pools()
    with get_client(sync_client=True) as client:
        make_pools(client, pools)
        make_automations(client)
        deploy()
        if own_server:
            drop_missed_runs(client)
    with workers(pools) as started:
        while not any(ended := [worker.poll() for worker in started]):
            if None not in ended:
                return
            time.sleep(1)
        raise UserError("a worker of Prefect failed; its message is above")


def work_pools() -> list[str]:
    """The work pools of the deployments. Raises UserError that names the keys which Prefect does not know or take.

    `prefect deploy` passes over a key that it does not know, so that with a misspelt `paused` the deployment runs.
    """
    from prefect.cli.deploy._config import _format_validation_error
    from prefect.cli.deploy._models import PrefectYamlModel

    try:
        found = yaml.safe_load(PREFECT_YAML.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{PREFECT_YAML}: not found; run this from the project's root") from None
    except yaml.YAMLError as error:
        raise UserError(f"{PREFECT_YAML}: not valid YAML: {error}") from None
    deployments = {"deployments": found.get("deployments") if isinstance(found, dict) else None}
    try:
        checked = PrefectYamlModel.model_validate(deployments, extra="forbid").deployments
    except ValidationError as error:
        raise UserError(f"{PREFECT_YAML}: {_format_validation_error(error, deployments)}") from None
    return sorted({entry.work_pool.name for entry in checked if entry.work_pool and entry.work_pool.name})


def make_pools(client: "SyncPrefectClient", pools: list[str]) -> None:
    """Make the work pools that the server does not have; their flow runs are processes of this machine."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    for name in pools:
        template = ProcessWorker.get_default_base_job_template()
        with suppress(ObjectAlreadyExists):
            client.create_work_pool(WorkPoolCreate(name=name, type=ProcessWorker.type, base_job_template=template))


def make_automations(client: "SyncPrefectClient") -> None:
    """Make those automations of `deploy/automations.yaml` that the server does not have."""
    from prefect.events.schemas.automations import AutomationCore

    if AUTOMATIONS.exists():
        for entry in yaml.safe_load(AUTOMATIONS.read_text(encoding="utf-8"))["automations"]:
            if not client.read_automations_by_name(entry["name"]):
                client.create_automation(AutomationCore.model_validate(entry))


def drop_missed_runs(client: "SyncPrefectClient") -> None:
    """Delete the runs that were due by a schedule while the server was down: a worker would start all of them now."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterExpectedStartTime, FlowRunFilterState
    from prefect.client.schemas.filters import FlowRunFilterStateType as StateTypes
    from prefect.client.schemas.objects import StateType

    missed = FlowRunFilter(
        state=FlowRunFilterState(type=StateTypes(any_=[StateType.SCHEDULED])),
        expected_start_time=FlowRunFilterExpectedStartTime(before_=datetime.now(UTC)),
    )
    kept = 0
    while page := client.read_flow_runs(flow_run_filter=missed, offset=kept):  # the server answers with some at a time
        for run in page:
            if run.auto_scheduled and not run.run_count:
                client.delete_flow_run(run.id)
            else:
                kept += 1


def deploy() -> None:
    """`prefect deploy --all`. Raises UserError with its message where it fails."""
    command = [*PREFECT, "deploy", "--all", "--prefect-file", str(PREFECT_YAML)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise UserError(f"prefect deploy --all: {done.stdout.strip()}")


@contextmanager
def workers(pools: list[str]) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """A worker for each pool. At the end each is asked to stop, and with it the runs that it has started.

    In sessions of their own: the Ctrl-C of a terminal would be a second signal, at which a worker kills itself.
    """
    started = [
        subprocess.Popen([*PREFECT, "worker", "start", "--pool", pool], start_new_session=True) for pool in pools
    ]
    try:
        yield started
    finally:
        for worker in started:
            worker.terminate()
        for worker in started:
            worker.wait()


SOURCE_VARIABLE = "PARROTFLOW_SOURCE"
"""The git repository, address or path, that deployments run."""

CHECKOUT_VARIABLE = "PARROTFLOW_CHECKOUT"
"""Where deployments keep their checkout from run to run."""

CHECKOUT = "checkout"
"""Its name in `.parrotflow`, unless the variable names another folder."""

RETRY_DELAYS_SECONDS = [10.0, 60.0, 300.0]
"""Before each new attempt to reach git's or DVC's remote."""


def source_address(default: str) -> str:
    """The repository that this worker runs. It is no parameter of a run, since its code is executed."""
    source = os.environ.get(SOURCE_VARIABLE) or default
    return str(Path(source).absolute()) if Path(source).exists() else source


def checkout_folder() -> Path:
    """This worker's checkout."""
    if own := os.environ.get(CHECKOUT_VARIABLE):
        return Path(own).absolute()
    return (private_state_dir() / CHECKOUT).absolute()


def require_names(*names: str) -> None:
    """Raise UserError for a branch or a stage that git or DVC would take for an option."""
    for name in names:
        if name.startswith("-") or ".." in name:
            raise UserError(f"`{name}`: not the name of a branch or a stage")


def as_task(name: str, work: Callable[..., Any], delays_seconds: Sequence[float] = ()) -> Any:
    """A function as a task of Prefect, which is tried again after each delay where a remote did not answer."""
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    decorated = task(
        name=name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=len(delays_seconds),
        retry_delay_seconds=list(delays_seconds),
        retry_condition_fn=is_transient,
    )
    return decorated(work)


def is_transient(work: Any, task_run: Any, state: "State[Any]") -> bool:
    """Whether a task failed because a remote did not answer."""
    try:
        state.result()
    except UnavailableError:
        return True
    except Exception:
        return False
    return False


def has_remote() -> bool:
    """Whether this repository has a default DVC remote."""
    command = [sys.executable, "-m", "dvc", "config", "core.remote"]
    return bool(subprocess.run(command, capture_output=True, check=False).stdout.strip())


def dvc(*arguments: str) -> None:
    """Run a command of DVC. Raises UnavailableError with its message where it fails."""
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise UnavailableError(f"dvc {arguments[0]}: {result.stderr.strip()[-2000:]}")
