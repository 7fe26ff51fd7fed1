"""Where other programs keep their things: inside the project's ignored folder, and nothing is sent out.

Called before prefect or dvc is imported. A user's own Prefect profile is neither read nor changed, unless
`PREFECT_API_URL` names a server: then Prefect is theirs, and only the telemetry stays off. Whatever the user has set
stays as it is.
"""

import os
import sys
from pathlib import Path

HOME = Path(".parrotflow")


def prepare_environment() -> None:
    """Set what is not set yet, for this process and its children."""
    home = HOME.absolute()
    values = {
        "DVC_NO_ANALYTICS": "1",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "MPLCONFIGDIR": str(home / "matplotlib"),
        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
        "WANDB_DIR": str(home / "wandb"),
        "DVC_SITE_CACHE_DIR": str(home / "dvc"),
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "PYTHONUNBUFFERED": "1",
    }
    if "PREFECT_API_URL" not in os.environ:
        (home / "prefect").mkdir(parents=True, exist_ok=True)
        values |= {
            "PREFECT_HOME": str(home / "prefect"),
            "PREFECT_PROFILES_PATH": str(home / "prefect" / "profiles.toml"),
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        }
    for name, value in values.items():
        os.environ.setdefault(name, value)
    # dvc.yaml says `python`; it shall be this one, activated or not.
    own = str(Path(sys.executable).parent)
    if os.environ.get("PATH", "").split(os.pathsep)[0] != own:
        os.environ["PATH"] = os.pathsep.join([own, os.environ.get("PATH", "")])
