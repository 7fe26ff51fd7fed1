"""The environment of a command: its folder, the variables that it sets for other programs, and those that it reads.

A command works in the project's root, and other programs keep their files in its ignored folder. That is set before
prefect or dvc is imported. No telemetry is sent. A user's own Prefect profile is neither read nor changed, unless
`PREFECT_API_URL` names a server: then Prefect's settings are the user's, and only telemetry is off. Variables that are
set already are left alone.

The variables PARROTFLOW_* say how a run is executed, which changes no result. The site lists them; `parrotflow doctor`
shows those that are set, and a misspelt one, which would otherwise be ignored.
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
        raise UserError("HOME is not set, and this user has no home folder: set HOME to a folder to write in") from None


def enter_project() -> None:
    """Go to the project's root, also from a folder inside it, and make its `.parrotflow/`, if this is a project."""
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".dvc").is_dir()), None)
    if root is not None:
        os.chdir(root)
        private_state_dir()


PREFIX = "PARROTFLOW_"

VARIABLES = {
    "PARROTFLOW_LAUNCH": (
        "`one_gpu` or `cpu`",
        "how training starts: a preset of `deploy/launch/` or a path to an Accelerate config file",
    ),
    "PARROTFLOW_MICRO_BATCH": (
        "by the hardware",
        "sequences in one forward pass; the rest of the global batch is accumulated",
    ),
    "PARROTFLOW_MIRROR": (
        "none",
        "a second home for the newest checkpoint, from which another machine continues: any fsspec URL, such as "
        "`s3://bucket/runs`, without a password in it",
    ),
    "PARROTFLOW_COMPILE": (
        "`auto`",
        "`torch.compile`: `on`, `off`, or `auto` where the whole run repays its start-up; a run that continues stays "
        "as it was",
    ),
    "PARROTFLOW_PROFILE": ("none", "training steps, such as `10-12`, of which each process writes a trace"),
    "PARROTFLOW_WORKERS": ("all cores", "processes of the data stages; programs that `score` runs at once"),
    "PARROTFLOW_EVALUATE_BATCH": (
        "32,768 tokens on a GPU, 1,024 on a CPU",
        "windows of full length that `evaluate` scores at once",
    ),
    "PARROTFLOW_HARNESS_BATCH": (
        "16 on a GPU, 4 on a CPU",
        "requests of lm-evaluation-harness that the model answers at once",
    ),
    "PARROTFLOW_STAGES_AT_ONCE": ("2", "stages that `parrotflow run` lets run side by side"),
    "PARROTFLOW_SHARD_CACHE_GB": (
        "50",
        "gigabytes of results that `.parrotflow/cache` may keep; stages remove the least recently used",
    ),
    "PARROTFLOW_SIGNING_KEY": ("none", "private key of ssh-keygen that signs published revisions"),
    "PARROTFLOW_TRUSTED_KEY": (
        "none",
        "file of public keys with which `published verify` and `reproduce` check a signature",
    ),
    "PARROTFLOW_SOURCE": (
        "the folder in which the worker runs; for cells of a sweep, its `origin`",
        "the git repository that deployments run",
    ),
    "PARROTFLOW_CHECKOUT": ("`.parrotflow/checkout`", "where deployments keep their checkout"),
}
"""Name -> (default, meaning)."""

SET_BY_STAGES = {
    "PARROTFLOW_END_FILE",
    "PARROTFLOW_LAUNCH_SETTINGS",
    "PARROTFLOW_SEGMENT",
    "PARROTFLOW_STAGES_TO_DO",
    "PARROTFLOW_SUPERVISION",
}
"""How a run and the processes of a stage tell each other what to do; users do not set them."""
