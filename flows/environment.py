"""The environment of a command: its folder, the variables that it sets for other programs, and those that it reads.

A command works in the project's root, and other programs keep their files in its ignored folder. That is set before
prefect or dvc is imported. No telemetry is sent. A user's own Prefect profile is neither read nor changed, unless
`PREFECT_API_URL` names a server: then Prefect's settings are the user's, and only telemetry is off. Variables that are
set already are left alone.

The variables PARROTFLOW_* say how a run is executed, not what it computes. The site says what each of them means;
`parrotflow doctor` shows those that are set, and a misspelt one, which would otherwise be ignored.
"""

import getpass
import os
import sys
from pathlib import Path

from stages.runtime.errors import STATE_DIR, UserError, private_state_dir


def dvc_state_within(project: Path) -> dict[str, str]:
    """Have DVC keep within a project what it knows of its files; in a clone, so that it is removed with it."""
    return {"DVC_SITE_CACHE_DIR": str(project / STATE_DIR / "dvc")}


def prepare_environment() -> None:
    """Set what is not set yet, for this process and its children. Raises UserError without a home folder."""
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
        # Below it Prefect prints each event, in full, that a server which has gone away did not take.
        "PREFECT_INTERNAL_LOGGING_LEVEL": "CRITICAL",
        "PYTHONUNBUFFERED": "1",
    }
    if "PREFECT_API_URL" not in os.environ:
        values |= {
            "PREFECT_HOME": str(home / "prefect"),
            "PREFECT_PROFILES_PATH": str(home / "prefect" / "profiles.toml"),
            # A server that Prefect starts by itself outlives a run that is killed.
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        }
    for name, value in values.items():
        os.environ.setdefault(name, value)
    for name in ("NO_PROXY", "no_proxy"):  # no proxy stands between this machine and itself
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1,localhost"]))
    # dvc.yaml says `python`: that is this one, whether its environment is activated or not.
    own = str(Path(sys.executable).parent)
    if os.environ.get("PATH", "").split(os.pathsep)[0] != own:
        os.environ["PATH"] = os.pathsep.join([own, os.environ.get("PATH", "")])


def name_the_user() -> None:
    """Give libraries a user's name where the system has none, as in a container with a user id of its own."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = f"user-{os.getuid()}"
    try:
        Path.home()
    except RuntimeError:
        raise UserError("HOME is not set, and this user has no home folder: set HOME to a writable folder") from None


def enter_project() -> None:
    """Go to the project's root, also from a folder inside it, and make its `.parrotflow/`, if this is a project."""
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
"""How a run and the processes of a stage tell each other what to do; users do not set them."""
