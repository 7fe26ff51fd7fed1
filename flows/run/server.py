"""The Prefect server that records a run: that of `PREFECT_API_URL`, else a child on the project's database.

The child starts before the run is planned and ends with the run, however the run ends. It has no pages: `parrotflow ui`
shows its runs, also while they work. Only callers with the run's key are answered, since any user of this machine and
any web page could call it.
"""

import atexit
import contextlib
import gc
import http.client
import os
import secrets
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from socket import create_server, socket

from stages.runtime.entry import STATE_DIR, UserError

PREFECT_HOME = STATE_DIR / "prefect"
LOG = STATE_DIR / "server.log"
START_SECONDS = 180.0
"""The first start makes the database: 9 s on a quiet machine."""

ANSWER_SECONDS = 5.0
STOP_SECONDS = 20.0
"""In which a server writes what it still holds."""


@dataclass
class Server:
    """Where a server's API is."""

    api: str
    process: "subprocess.Popen[bytes] | None" = None
    """Of a child; None of another server, which has pages."""

    @property
    def pages(self) -> str:
        """The address for a browser; empty for a child."""
        return "" if self.process else os.environ.get("PREFECT_UI_URL") or self.api.removesuffix("/api")

    def wait(self) -> None:
        """Wait until it answers. Raises UserError."""
        deadline = time.monotonic() + (START_SECONDS if self.process else ANSWER_SECONDS)
        while time.monotonic() < deadline and (self.process is None or self.process.poll() is None):
            if answers(f"{self.api}/health"):
                return
            time.sleep(0.1)
        if self.process is None:
            raise UserError(f"Prefect's server at {self.api} does not answer: start it, or unset PREFECT_API_URL")
        raise UserError(f"Prefect's server did not start; see {LOG}. `dvc repro` runs the stages without one")

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """End a child. It gets this many seconds to write what it still holds."""
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
            self.process.kill()


def start_server() -> Server:
    """The server of `PREFECT_API_URL`, else a new child, without waiting for either."""
    # No proxy of the environment stands between this machine and itself.
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1,localhost"]))
    if api := os.environ.get("PREFECT_API_URL"):
        return Server(api.rstrip("/"))
    PREFECT_HOME.mkdir(parents=True, exist_ok=True)
    key = f"run:{secrets.token_urlsafe(24)}"
    # As Prefect starts servers of its own: without pages and without what only deployments need.
    own = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    own |= {"PREFECT_HOME": str(PREFECT_HOME.absolute()), "PREFECT_SERVER_API_AUTH_STRING": key}
    with create_server(("127.0.0.1", 0)) as listening, LOG.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(listening.fileno())],
            stdin=subprocess.PIPE,  # it ends when this does
            stdout=log,
            stderr=log,
            env=os.environ | own,
            pass_fds=[listening.fileno()],
            start_new_session=True,
        )
        server = Server(f"http://127.0.0.1:{listening.getsockname()[1]}/api", process)
    os.environ.update({"PREFECT_API_URL": server.api, "PREFECT_API_AUTH_STRING": key})
    # After Prefect has sent what it still holds, which it does before.
    atexit.register(server.stop)
    return server


def ui_command(port: int) -> list[str]:
    """`prefect server start` on this project's database; its pages would ask for data at port 4200."""
    os.environ["PREFECT_SERVER_UI_API_URL"] = f"http://127.0.0.1:{port}/api"
    return [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]


@contextlib.contextmanager
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


def answers(address: str) -> bool:
    """Whether a server of HTTP answers a GET, be it with an error."""
    try:
        with urllib.request.urlopen(address, timeout=10):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError, http.client.HTTPException):  # the latter two: no address, or not HTTP
        return False


def main(listening: int) -> None:
    """Serve the API on a socket that was handed down, until the process that started this one has ended."""
    import uvicorn

    gc.set_threshold(100_000)  # as in `flows.cli`: a fifth of the time in which Prefect's server starts
    threading.Thread(target=_end_with_input, daemon=True).start()
    config = uvicorn.Config("prefect.server.api.server:create_app", factory=True, log_level="error", lifespan="on")
    uvicorn.Server(config).run([socket(fileno=listening)])


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
