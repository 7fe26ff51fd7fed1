"""The Prefect server that records a run: the one at `PREFECT_API_URL`, else a child with the project's database.

The child starts before the run is planned and ends with the run, even after a kill. `parrotflow ui` shows its runs,
including running ones. The child asks for the run's key, since any user of this machine and any web page can reach it.
"""

import atexit
import contextlib
import gc
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from socket import create_server, socket

from stages.runtime.errors import STATE_DIR, UserError
from stages.runtime.hub import CERTIFICATES, PROXIES, network_fault

LOG = STATE_DIR / "server.log"

START_SECONDS = 180.0
"""The first start makes the database: 9 s on a quiet machine."""

ANSWER_SECONDS = 5.0


@dataclass
class Server:
    """The address of a server's API."""

    api: str
    process: "subprocess.Popen[bytes] | None" = None
    """The child process; None for another server, which also serves the UI."""

    @property
    def pages(self) -> str:
        """The address for a browser; empty for a child."""
        return "" if self.process else os.environ.get("PREFECT_UI_URL") or self.api.removesuffix("/api")

    def reach_directly(self) -> None:
        """If the server is on this machine, drop this process's proxies and certificates; stages keep them."""
        if re.match(r"https?://(127\.0\.0\.1|localhost|\[::1\])[:/]", self.api):
            for name in (*PROXIES, *CERTIFICATES):
                os.environ.pop(name, None)

    def wait(self) -> None:
        """Wait until the server answers; asking for a key counts as an answer. Raises UserError."""
        import httpx

        if fault := network_fault():
            raise UserError(fault)
        deadline = time.monotonic() + (START_SECONDS if self.process else ANSWER_SECONDS)
        with httpx.Client(timeout=10) as client:
            while time.monotonic() < deadline and (self.process is None or self.process.poll() is None):
                with contextlib.suppress(httpx.HTTPError, httpx.InvalidURL):
                    client.get(f"{self.api}/health")
                    return
                time.sleep(0.1)
        if self.process is None:
            raise UserError(f"no Prefect server answers at {self.api}: `parrotflow ui` starts one; see PREFECT_API_URL")
        raise UserError(f"Prefect's server did not start; see {LOG}. `dvc repro` runs the stages without one")

    def stop(self, seconds: float = 20.0) -> None:
        """End a child; kill it if it still writes its data after this many seconds."""
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
            self.process.kill()


_started: list[Server] = []
"""The child of this process, if it has one."""


def start_server() -> Server:
    """Return the server at `PREFECT_API_URL`, else start a child, once per process. Waits for neither."""
    if api := os.environ.get("PREFECT_API_URL"):
        return next((server for server in _started if server.api == api.rstrip("/")), Server(api.rstrip("/")))
    key = f"run:{secrets.token_urlsafe(24)}"
    # As Prefect starts temporary servers: without pages and without the services that only deployments need.
    environment = {name: value for name, value in os.environ.items() if name not in (*PROXIES, *CERTIFICATES)}
    environment |= {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    environment["PREFECT_SERVER_API_AUTH_STRING"] = key
    with create_server(("127.0.0.1", 0)) as listening, LOG.open("ab") as log:
        number = listening.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(number)],
            stdin=subprocess.PIPE,  # the child ends when this closes
            stdout=log,
            stderr=log,
            env=environment,
            pass_fds=[number],
            start_new_session=True,
        )
        server = Server(f"http://127.0.0.1:{listening.getsockname()[1]}/api", process)
    os.environ.update({"PREFECT_API_URL": server.api, "PREFECT_API_AUTH_STRING": key})
    _started.append(server)
    atexit.register(server.stop)  # runs after Prefect has sent its last data
    return server


def serve_api(listening: int) -> None:
    """Serve the API on an inherited socket, until the parent process ends."""
    import uvicorn

    def end_with_input() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    gc.set_threshold(100_000)  # as in `flows.cli`: saves a fifth of the start of Prefect's server
    threading.Thread(target=end_with_input, daemon=True).start()
    config = uvicorn.Config("prefect.server.api.server:create_app", factory=True, log_level="error", lifespan="on")
    uvicorn.Server(config).run([socket(fileno=listening)])


if __name__ == "__main__":
    serve_api(int(sys.argv[1]))
