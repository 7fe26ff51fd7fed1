"""The Prefect server that records a run: that of `PREFECT_API_URL`, the project's own while it is up, or a child.

`parrotflow ui` and `parrotflow serve` keep the project's own up, with its pages. A run that finds no server starts one
without pages on the same database, which ends with it; `parrotflow ui` shows its runs afterwards.

Prefect lets any web page call a server on this machine and asks for no password. These answer only the pages that they
serve themselves, and only with the project's key, which its owner alone can read.
"""

import atexit
import contextlib
import fcntl
import gc
import http.client
import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from socket import create_server, socket

from stages.runtime.entry import STATE_DIR, UserError

PREFECT_HOME = STATE_DIR / "prefect"
KEY = PREFECT_HOME / "key"
LOG = STATE_DIR / "server.log"
START_SECONDS = 180.0
"""The first start makes the database: 9 s on a quiet machine."""

STOP_SECONDS = 20.0

ANSWER_SECONDS = 5.0
"""How long a server that is said to be up may take until its first answer."""

OWN_SERVER = STATE_DIR / "server.json"
"""Written by `parrotflow ui` and `parrotflow serve` for as long as they run. Readable by its owner alone."""

CREDENTIAL = re.compile("TOKEN|SECRET|PASS|CREDENTIAL|API_?KEY|ACCESS_?KEY|SSH_AUTH_SOCK", re.IGNORECASE)
"""In the names of variables that a server of pages does not need. Prefect's own it does: its database's password."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server's API is, and what it asks of its callers."""

    api: str
    """e.g. `http://127.0.0.1:4200/api`."""
    auth: str = ""
    """`user:password`, as Prefect's PREFECT_API_AUTH_STRING; empty where there is none."""
    pid: int = 0
    """Of a server of this project on this machine; 0 of another one."""
    has_pages: bool = True

    @property
    def pages(self) -> str:
        """The address for a browser."""
        return os.environ.get("PREFECT_UI_URL") or self.api.removesuffix("/api")

    def environment(self) -> dict[str, str]:
        """The variables by which Prefect's programs find it."""
        return {"PREFECT_API_URL": self.api} | ({"PREFECT_API_AUTH_STRING": self.auth} if self.auth else {})

    def answers(self) -> bool:
        """Whether it is up."""
        return answers(f"{self.api}/health", ANSWER_SECONDS)


def configured_server() -> Server | None:
    """The server of `PREFECT_API_URL`, else the project's own if it is up."""
    if api := os.environ.get("PREFECT_API_URL"):
        return Server(api.rstrip("/"), os.environ.get("PREFECT_API_AUTH_STRING", ""))
    return own_server()


def own_server() -> Server | None:
    """The project's own server with pages, if it is up."""
    try:
        server = Server(**json.loads(OWN_SERVER.read_text(encoding="utf-8")))
        os.kill(server.pid, 0)
    except (OSError, ValueError, TypeError):
        return None
    return server


def server_for_runs() -> Server:
    """The server for the runs of this process, to be called before Prefect is imported; a child of it where none is up.

    Raises UserError where the child does not start.
    """
    global _for_runs
    reach_loopback()
    if _for_runs is not None and (_for_runs.answers() or not _for_runs.pid):
        return _for_runs
    found = None if _for_runs else configured_server()
    if found is not None and not found.answers():
        print(
            f"warning: Prefect's server does not answer ({found.api}); the run is recorded here only",
            flush=True,
        )
        found = None
    # Prefect has read the address already, if this is not the first run of this process.
    _for_runs = found or _start_child((_for_runs and urllib.parse.urlsplit(_for_runs.api).port) or 0)
    os.environ.update(_for_runs.environment())
    return _for_runs


_for_runs: Server | None = None


def reach_loopback() -> None:
    """Let no proxy of the environment stand between this machine and itself."""
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))


def _start_child(port: int) -> Server:
    """A server without pages, which ends with this process, however that ends; port 0: any."""
    PREFECT_HOME.mkdir(parents=True, exist_ok=True)
    auth = f"parrotflow:{key()}"
    try:
        listening = create_server(("127.0.0.1", port))  # here: a port only looked up could be another's by then
    except OSError as error:
        raise UserError(f"Prefect's server cannot listen on 127.0.0.1:{port}: {error.strerror}") from error
    command = [sys.executable, "-m", "flows.run.server", str(listening.fileno())]
    # As Prefect starts servers of its own: without pages and without what only deployments need.
    own = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    # Not the user's own, which an address of theirs that does not answer would leave in place.
    own |= {"PREFECT_HOME": str(PREFECT_HOME.absolute()), "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false"}
    own |= {"PREFECT_PROFILES_PATH": str((PREFECT_HOME / "profiles.toml").absolute())}
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with listening:
        process = _started(command, server_environment(address, auth) | own, listening.fileno())

    def stop() -> None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        if process.stdin is not None:
            process.stdin.close()

    # After Prefect has sent what it still holds, which it does before.
    atexit.register(stop)
    _wait_for(address, process)
    return Server(f"{address}/api", auth, process.pid, has_pages=False)


@contextmanager
def server(port: int) -> Iterator[Server]:
    """The server of `PREFECT_API_URL`, else one with pages that lives as long as this context. Raises UserError."""
    if api := os.environ.get("PREFECT_API_URL"):
        yield Server(api, os.environ.get("PREFECT_API_AUTH_STRING", ""))
        return
    # One that was killed leaves its file, and its process's number may be another's by now.
    if (running := own_server()) and running.answers():
        raise UserError(f"the project's server is up already: {running.pages} (process {running.pid})")
    reach_loopback()
    address = f"http://127.0.0.1:{port}"
    PREFECT_HOME.mkdir(parents=True, exist_ok=True)
    if answers(f"{address}/api/health"):
        raise UserError(f"port {port} is in use; --port names another")
    auth = f"parrotflow:{key()}"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    process = _started(command, server_environment(address, auth))
    try:
        _wait_for(address, process)
        found = Server(f"{address}/api", auth, process.pid)
        with announced(found):
            os.environ.update(found.environment())
            yield found
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def announced(server: Server) -> Iterator[None]:
    """While within, runs in this folder find the server."""
    OWN_SERVER.parent.mkdir(exist_ok=True)
    OWN_SERVER.touch(mode=0o600)
    OWN_SERVER.write_text(json.dumps(asdict(server)), encoding="utf-8")
    try:
        yield
    finally:
        OWN_SERVER.unlink(missing_ok=True)


def server_environment(address: str, auth: str) -> dict[str, str]:
    """The environment of a server: no credentials of others, its own pages as the only origin, and the key."""
    kept = {
        name: value for name, value in os.environ.items() if name.startswith("PREFECT_") or not CREDENTIAL.search(name)
    }
    kept.pop("PREFECT_API_URL", None)
    return kept | {
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": address,
        # Its pages ask for data at port 4200, unless told otherwise.
        "PREFECT_SERVER_UI_API_URL": f"{address}/api",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # In memory, a restart would end every run of a deployment with a limit.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }


def key() -> str:
    """The project's key; made at the first call, and the same ever after, so that a browser can keep it."""
    with os.fdopen(os.open(KEY, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # two runs that begin at once would each make one, or read an empty file
        if not (found := file.read()):
            found = secrets.token_urlsafe(24)
            file.write(found)
    return found


def answers(address: str, seconds: float = 2.0) -> bool:
    """Whether a server of HTTP answers a GET, be it with an error."""
    try:
        with urllib.request.urlopen(address, timeout=seconds):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, http.client.HTTPException, ValueError):  # the latter two: not HTTP, or no address at all
        return False


def _started(
    command: Sequence[str], environment: dict[str, str], listening: int | None = None
) -> "subprocess.Popen[bytes]":
    """`listening`: the socket of a server that ends when its standard input does."""
    stdin = None if listening is None else subprocess.PIPE
    sockets = () if listening is None else (listening,)
    with LOG.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=sockets,
            start_new_session=True,
        )


def _wait_for(address: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if answers(f"{address}/api/health"):
            return
        time.sleep(0.1)
    process.kill()
    raise UserError(f"Prefect's server did not start at {address}; see {LOG}. `dvc repro` runs the stages without one")


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
