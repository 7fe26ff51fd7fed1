"""The project's own Prefect server, on loopback, for as long as `parrotflow ui` or `parrotflow serve` runs.

Prefect lets any web page call a server on this machine and asks for no password. This one answers only the pages that
it serves itself, and only with the project's key, which its owner alone can read.
"""

import os
import re
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.show.address import ServerAddress, announced, own_server
from stages.runtime.entry import STATE_DIR, UserError

PREFECT_HOME = STATE_DIR / "prefect"
KEY = PREFECT_HOME / "key"
START_SECONDS = 120.0

CREDENTIAL = re.compile("TOKEN|SECRET|PASS|CREDENTIAL|API_?KEY|ACCESS_?KEY|SSH_AUTH_SOCK", re.IGNORECASE)
"""In the names of variables that a server of pages does not need. Prefect's own it does: its database's password."""


@contextmanager
def server(port: int) -> Iterator[ServerAddress]:
    """The server of `PREFECT_API_URL`, else one that lives as long as this context. Raises UserError."""
    if api := os.environ.get("PREFECT_API_URL"):
        yield ServerAddress(api, os.environ.get("PREFECT_API_AUTH_STRING", ""))
        return
    if running := own_server():
        raise UserError(f"the project's server is up already: {running.pages} (process {running.pid})")
    address = f"http://127.0.0.1:{port}"
    log = STATE_DIR / "server.log"
    PREFECT_HOME.mkdir(parents=True, exist_ok=True)
    if answers(f"{address}/api/health"):
        raise UserError(f"port {port} is in use; --port names another")
    auth = f"parrotflow:{key()}"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=server_environment(address, auth),
            start_new_session=True,
        )
    try:
        _wait_for(address, process, log)
        found = ServerAddress(f"{address}/api", auth, process.pid)
        with announced(found):
            os.environ.update(found.environment())
            yield found
    finally:
        process.terminate()
        process.wait()


def server_environment(address: str, auth: str) -> dict[str, str]:
    """The environment of the server: no credentials of others, its own pages as the only origin, and the key."""
    kept = {
        name: value for name, value in os.environ.items() if name.startswith("PREFECT_") or not CREDENTIAL.search(name)
    }
    return kept | {
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": address,
        # Its pages ask for data at port 4200, unless told otherwise.
        "PREFECT_SERVER_UI_API_URL": f"{address}/api",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    }


def key() -> str:
    """The project's key; made at the first call, and the same ever after, so that a browser can keep it."""
    if not KEY.exists():
        KEY.touch(mode=0o600)
        KEY.write_text(secrets.token_urlsafe(24), encoding="utf-8")
    return KEY.read_text(encoding="utf-8")


def answers(address: str) -> bool:
    """Whether a GET succeeds."""
    try:
        with urllib.request.urlopen(address, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _wait_for(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if answers(f"{address}/api/health"):
            return
        time.sleep(0.3)
    raise UserError(f"Prefect's server did not start at {address}; see {log}")
