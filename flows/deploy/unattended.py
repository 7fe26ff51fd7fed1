"""What the flows of deployments share: where they work, and how they try a remote that does not answer again."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import State

from stages.runtime.entry import UnavailableError, UserError, private_state_dir

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


def with_retries(work: Any, delays_seconds: Sequence[float]) -> Any:
    """A task that Prefect tries again after each delay, where the failure is transient."""
    return work.with_options(
        retries=len(delays_seconds), retry_delay_seconds=list(delays_seconds), retry_condition_fn=is_transient
    )


def is_transient(work: Any, task_run: Any, state: State[Any]) -> bool:
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
