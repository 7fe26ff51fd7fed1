"""The Prefect server that shows runs: that of `PREFECT_API_URL`, else the project's own while it is up, else none."""

import base64
import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

OWN_SERVER = Path(".parrotflow/server.json")
"""Written by `parrotflow ui` and `parrotflow serve` for as long as they run. Readable by its owner alone."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server's API is, and what it asks of its callers."""

    api: str
    """e.g. `http://127.0.0.1:4200/api`."""
    auth: str = ""
    """`user:password`, as Prefect's PREFECT_API_AUTH_STRING; empty where there is none."""
    pid: int = 0
    """Of the project's own server."""

    @property
    def pages(self) -> str:
        """The address for a browser."""
        return os.environ.get("PREFECT_UI_URL") or self.api.removesuffix("/api")

    def environment(self) -> dict[str, str]:
        """The variables by which Prefect's programs find it."""
        return {"PREFECT_API_URL": self.api} | ({"PREFECT_API_AUTH_STRING": self.auth} if self.auth else {})

    def headers(self) -> dict[str, str]:
        """The HTTP headers of a request."""
        if self.auth:
            return {"Authorization": f"Basic {base64.b64encode(self.auth.encode()).decode()}"}
        key = os.environ.get("PREFECT_API_KEY")
        return {"Authorization": f"Bearer {key}"} if key else {}


def configured_server() -> ServerAddress | None:
    """The server to record runs in."""
    if api := os.environ.get("PREFECT_API_URL"):
        return ServerAddress(api.rstrip("/"), os.environ.get("PREFECT_API_AUTH_STRING", ""))
    return own_server()


def own_server() -> ServerAddress | None:
    """The project's own server, if it is up."""
    try:
        server = ServerAddress(**json.loads(OWN_SERVER.read_text(encoding="utf-8")))
        os.kill(server.pid, 0)
    except (OSError, ValueError, TypeError):
        return None
    return server


@contextlib.contextmanager
def announced(server: ServerAddress) -> Iterator[None]:
    """While within, runs in this folder find the server."""
    OWN_SERVER.parent.mkdir(exist_ok=True)
    OWN_SERVER.touch(mode=0o600)
    OWN_SERVER.write_text(json.dumps(asdict(server)), encoding="utf-8")
    try:
        yield
    finally:
        OWN_SERVER.unlink(missing_ok=True)
