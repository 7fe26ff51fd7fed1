"""What `parrotflow serve` serves, where the flows of deployments work, and how these try a silent remote again."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from flows.run.server import LOG, Server, answers, ui_command
from stages.runtime.entry import UnavailableError, UserError, private_state_dir

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State
    from prefect.deployments.runner import RunnerDeployment

PREFECT_YAML = Path("prefect.yaml")

SERVED_KEYS = {"name", "entrypoint", "description", "parameters", "schedules", "concurrency_limit", "work_pool"}

SOURCE_VARIABLE = "PARROTFLOW_SOURCE"
"""The git repository, address or path, that deployments run."""

CHECKOUT_VARIABLE = "PARROTFLOW_CHECKOUT"
"""Where deployments keep their checkout from run to run."""

CHECKOUT = "checkout"
"""Its name in `.parrotflow`, unless the variable names another folder."""

RETRY_DELAYS_SECONDS = [10.0, 60.0, 300.0]
"""Before each new attempt to reach git's or DVC's remote."""


@contextmanager
def prefect_server(port: int) -> Iterator[None]:
    """While within, the server of `PREFECT_API_URL` is up, or else `parrotflow ui`. Raises UserError."""
    if "PREFECT_API_URL" in os.environ:
        yield
        return
    address = f"http://127.0.0.1:{port}"
    if answers(f"{address}/api/health"):
        raise UserError(f"port {port} is in use: let PREFECT_API_URL name that server, or --port another port")
    with LOG.open("ab") as log:
        process = subprocess.Popen(ui_command(port), stdout=log, stderr=log, start_new_session=True)
    try:
        Server(f"{address}/api", process).wait()
        print(f"Prefect UI: {address} (Ctrl-C ends)", flush=True)
        os.environ["PREFECT_API_URL"] = f"{address}/api"
        yield
    finally:
        process.terminate()
        process.wait()


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


def served(file: Path = PREFECT_YAML) -> list["RunnerDeployment"]:
    """The deployments of prefect.yaml that run one at a time. Raises UserError on a key that would be passed over."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.client.schemas.schedules import CronSchedule
    from prefect.deployments.runner import RunnerDeployment

    found = []
    for entry in yaml.safe_load(file.read_text(encoding="utf-8"))["deployments"]:
        if "concurrency_limit" not in entry:  # the cells of sweeps, which need a work pool
            continue
        schedules = [dict(schedule) for schedule in entry.get("schedules", ())]
        unknown = {*entry} - SERVED_KEYS | {key for one in schedules for key in {*one} - {"cron", "timezone", "active"}}
        if unknown:
            raise UserError(
                f"{file}: {entry['name']}: {', '.join(sorted(unknown))}: `parrotflow serve` does not take this key; "
                "remove it, or use `prefect deploy` and a worker"
            )
        one = RunnerDeployment.from_entrypoint(
            entry["entrypoint"],
            entry["name"],
            parameters=entry.get("parameters"),
            description=entry.get("description"),
            schedules=[{"active": one.pop("active", True), "schedule": CronSchedule(**one)} for one in schedules],
            concurrency_limit=ConcurrencyLimitConfig(**entry["concurrency_limit"]),
        )
        found.append(one)
    return found


def serve_deployments() -> None:
    """Serve them until Ctrl-C, which ends their runs and pauses the schedule: nothing missed is made up for."""
    from prefect import serve

    serve(*served())
