"""`parrotflow serve`: `prefect deploy --all`, and a worker for what it deploys, on this machine.

Prefect itself reads prefect.yaml, so every key of it means here what it means on a server with work pools of its own.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pydantic import ValidationError

from stages.runtime.entry import UserError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

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
    for run in client.read_flow_runs(flow_run_filter=missed):
        if run.auto_scheduled and not run.run_count:
            client.delete_flow_run(run.id)


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
