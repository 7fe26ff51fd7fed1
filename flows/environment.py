"""The environment of a command: its folder, the variables that it sets for other programs, and those that it reads.

A command works in the project's root, and other programs keep their files in `.parrotflow`. The variables for that are
set before prefect or dvc is imported; existing variables are kept. No telemetry is sent. The user's Prefect profile is
neither read nor changed, unless `PREFECT_API_URL` is set: then Prefect uses the user's settings, without telemetry.

The variables PARROTFLOW_* determine how a run is executed, not what it computes. `parrotflow doctor` shows those that
are set, and reports misspelled ones, which would otherwise be ignored.
"""

import getpass
import os
import sys
from pathlib import Path

from stages.runtime.errors import STATE_DIR, UserError, private_state_dir


def dvc_state_within(project: Path) -> dict[str, str]:
    """Make DVC keep its state about a project's files in the project, so that it is deleted with it."""
    return {"DVC_SITE_CACHE_DIR": str(project / STATE_DIR / "dvc")}


def prepare_environment() -> None:
    """Set unset variables for this process and its children. Raises UserError if there is no home folder."""
    name_the_user()
    if Path(".dvc").is_dir():
        private_state_dir()
    home = STATE_DIR.absolute()
    values = {
        "DVC_NO_ANALYTICS": "1",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "MPLCONFIGDIR": str(home / "matplotlib"),
        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
        "WANDB_DIR": str(home / "wandb"),
        **dvc_state_within(Path.cwd()),
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        # At lower levels Prefect prints every event that it cannot send to a stopped server.
        "PREFECT_INTERNAL_LOGGING_LEVEL": "CRITICAL",
        "PYTHONUNBUFFERED": "1",
    }
    if "PREFECT_API_URL" not in os.environ:
        values |= {
            "PREFECT_HOME": str(home / "prefect"),
            "PREFECT_PROFILES_PATH": str(home / "prefect" / "profiles.toml"),
            # A server that Prefect starts would outlive a killed run.
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        }
    for name, value in values.items():
        os.environ.setdefault(name, value)
    for name in ("NO_PROXY", "no_proxy"):  # exempt loopback from proxies
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1,localhost"]))
    # `python` in dvc.yaml must be this one, even if its environment is not activated.
    folder = str(Path(sys.executable).parent)
    if os.environ.get("PATH", "").split(os.pathsep)[0] != folder:
        os.environ["PATH"] = os.pathsep.join([folder, os.environ.get("PATH", "")])


def name_the_user() -> None:
    """Set a user name for libraries if the user id has none, as in some containers."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = f"user-{os.getuid()}"
    try:
        Path.home()
    except RuntimeError:
        raise UserError("HOME is not set, and this user has no home folder: set HOME to a writable folder") from None


def enter_project() -> None:
    """Change to the project's root, from any folder inside it, and create its `.parrotflow/`, if this is a project."""
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".dvc").is_dir()), None)
    if root is not None:
        os.chdir(root)
        private_state_dir()


PREFIX = "PARROTFLOW_"

VARIABLES = {
    "PARROTFLOW_CHECKOUT",
    "PARROTFLOW_COMPILE",
    "PARROTFLOW_EVALUATE_BATCH",
    "PARROTFLOW_HARNESS_BATCH",
    "PARROTFLOW_LAUNCH",
    "PARROTFLOW_MICRO_BATCH",
    "PARROTFLOW_MIRROR",
    "PARROTFLOW_PROFILE",
    "PARROTFLOW_SHARD_CACHE_GB",
    "PARROTFLOW_SIGNING_KEY",
    "PARROTFLOW_SOURCE",
    "PARROTFLOW_STAGES_AT_ONCE",
    "PARROTFLOW_TRUSTED_KEY",
    "PARROTFLOW_WORKERS",
}
"""The variables that users may set."""

SET_BY_STAGES = {
    "PARROTFLOW_END_FILE",
    "PARROTFLOW_LAUNCH_SETTINGS",
    "PARROTFLOW_SEGMENT",
    "PARROTFLOW_STAGES_TO_DO",
    "PARROTFLOW_SUPERVISION",
}
"""Variables between a run and the processes of its stages; users do not set them."""
