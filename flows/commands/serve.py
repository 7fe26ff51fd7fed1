"""`parrotflow serve` and `parrotflow ui`."""

import os
import sys
import warnings
from contextlib import suppress

from flows.run.server import Server
from stages.runtime.errors import private_state_dir


def serve() -> None:
    """Run the deployments `nightly` and `on-demand` on this machine until Ctrl-C, which also pauses the schedule.

    Needs a Prefect server: that of PREFECT_API_URL, or `parrotflow ui`.
    """
    os.environ.setdefault("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    Server(os.environ["PREFECT_API_URL"]).wait()
    warnings.filterwarnings("ignore", "coroutine 'Runner.astop'")  # Prefect's; it pauses the schedule anyway
    # Prefect reads the server's address on import.
    import prefect

    from flows.scheduled import served

    with suppress(KeyboardInterrupt):
        prefect.serve(*served())


def ui(*, port: int = 4200) -> None:
    """Serve the Prefect UI with all runs of this folder, until Ctrl-C (`prefect server start`).

    Parameters
    ----------
    port
        The port on this machine.
    """
    private_state_dir()  # Prefect creates its database here, but not its parent folders
    os.environ["PREFECT_SERVER_UI_API_URL"] = f"http://127.0.0.1:{port}/api"  # by default the UI uses port 4200
    print(f"The Prefect UI: http://127.0.0.1:{port} (press Ctrl-C to stop)", flush=True)
    start = ["--no-prompt", "server", "start", "--host", "127.0.0.1", "--port", str(port)]  # no prompt for a profile
    os.execv(sys.executable, [sys.executable, "-m", "prefect", *start])
