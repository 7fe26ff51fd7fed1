"""Where a command works, the project's root; and where other programs keep their files: in its ignored folder.

Called before prefect or dvc is imported. No telemetry is sent. A user's own Prefect profile is neither read nor
changed, unless `PREFECT_API_URL` names a server: then Prefect's settings are the user's, and only telemetry is off.
Variables that are set already are left alone.
"""

import os
import sys
from pathlib import Path

from stages.runtime.entry import STATE_DIR, private_state_dir


def dvc_state_within(project: Path) -> dict[str, str]:
    """Have DVC keep within a project what it knows of its files; in a clone, so that it is removed with it."""
    return {"DVC_SITE_CACHE_DIR": str(project / STATE_DIR / "dvc")}


def prepare_environment() -> None:
    """Set what is not set yet, for this process and its children."""
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
    # dvc.yaml says `python`: that is this one, whether its environment is activated or not.
    own = str(Path(sys.executable).parent)
    if os.environ.get("PATH", "").split(os.pathsep)[0] != own:
        os.environ["PATH"] = os.pathsep.join([own, os.environ.get("PATH", "")])


def enter_project() -> None:
    """Go to the project's root, also from a folder inside it, and let its `.parrotflow/` ignore itself in git.

    Outside a project nothing is made.
    """
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".dvc").is_dir()), None)
    if root is None:
        return
    os.chdir(root)
    ignore = private_state_dir() / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
