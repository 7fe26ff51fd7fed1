"""A Prefect server and a worker on loopback, with homes of their own; stopped by the test that started them."""

import fcntl
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from filelock import FileLock

from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


@dataclass
class Operated:
    """A running server, and the environment in which others speak to it."""

    address: str
    environment: dict[str, str]
    auth: tuple[str, str] | None = None
    """User and password, where the server asks for them."""

    def prefect(self, folder: Path, *arguments: str) -> str:
        """Run a command of Prefect to its end."""
        command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
        done = subprocess.run(command, cwd=folder, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def post(self, path: str, **body: Any) -> Any:
        """Call the server's API. While its SQLite is busy it answers 503, on a loaded machine 500: try again."""
        address = f"{self.address}/{path}"
        while (answer := httpx.post(address, json=body, auth=self.auth, timeout=None)).status_code in (500, 503):
            time.sleep(0.5)
        answer.raise_for_status()
        return answer.json()

    def flow_runs(self, flow: str) -> list[dict[str, Any]]:
        """The runs of a flow, the oldest first."""
        found = self.post("flow_runs/filter", flows={"name": {"any_": [flow]}}, sort="START_TIME_ASC")
        return [run for run in found if run["start_time"]]

    def task_states(self, flow_run: str) -> dict[str, str]:
        """The tasks of a run with the names of their states; empty where the server has not been told of one yet."""
        tasks = self.post("task_runs/filter", flow_runs={"id": {"any_": [flow_run]}})
        return {task["name"]: task["state"]["name"] if task["state"] else "" for task in tasks}


def environment_of(home: Path, **variables: str) -> dict[str, str]:
    """The environment of a machine's user with this home, who has no server yet."""
    others = ("PREFECT_", "GIT_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    path = os.pathsep.join([str(Path(sys.executable).parent), own["PATH"]])
    own |= {"PREFECT_HOME": str(home / "prefect"), "PATH": path, "HOME": str(home)}
    own |= {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2"}
    own |= {"GIT_CONFIG_GLOBAL": os.devnull, "OMP_NUM_THREADS": "1", "PARROTFLOW_COMPILE": "off", **variables}
    home.mkdir(parents=True, exist_ok=True)
    return own


def outcome(process: "subprocess.Popen[bytes]", address: str) -> str:
    """What has become of a server that starts; empty as long as that is open."""
    return "ended" if process.poll() is not None else "up" if answers(f"{address}/health") else ""


@contextmanager
def operated(home: Path, **variables: str) -> Iterator[Operated]:
    """Start a server on a free port; on another one where somebody else took that port meanwhile."""
    own = environment_of(home, **variables)
    for _ in range(3):
        port = free_port()
        address = f"http://127.0.0.1:{port}/api"
        own["PREFECT_API_URL"] = address
        with child(home, own, "server", "start", "--host", "127.0.0.1", "--port", str(port)) as process:
            if wait_until(partial(outcome, process, address)) == "up":
                yield Operated(address, own)
                return
    raise AssertionError((home / "prefect.log").read_text(encoding="utf-8"))


@contextmanager
def shared(folder: Path, home: Path) -> Iterator[Operated]:
    """One server for all test processes that name this folder, for a user with a home of this process's own.

    The first one starts the process that keeps the server, which ends once no test process holds the lock `users`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    address = folder / "address"
    with (folder / "users").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        with FileLock(folder / "start.lock"):
            if not address.exists():
                command = [sys.executable, "-m", "tests.flows.operated", str(folder)]
                keeper = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
                wait_until(lambda: address.exists() or keeper.poll() is not None)
        where = address.read_text(encoding="utf-8")
        yield Operated(where, environment_of(home) | {"PREFECT_API_URL": where})


def keep(folder: Path) -> None:
    """Keep a server for as long as a test process needs it. Its address is left here."""
    with operated(folder) as server, (folder / "users").open("a") as users:
        (folder / "address.partial").write_text(server.address, encoding="utf-8")
        (folder / "address.partial").rename(folder / "address")
        fcntl.flock(users, fcntl.LOCK_EX)


@contextmanager
def worker(server: Operated, folder: Path, pool: str, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker of a process pool."""
    arguments = ("worker", "start", "--pool", pool, "--type", "process", "--prefetch-seconds", "1", *options)
    with child(folder, server.environment | {"PREFECT_WORKER_QUERY_SECONDS": "1"}, *arguments) as process:
        yield process


@contextmanager
def child(folder: Path, environment: dict[str, str], *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A long-lived command of Prefect; what it says goes to `prefect.log`."""
    command = [sys.executable, "-m", "prefect", *arguments]
    with (folder / "prefect.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(address: str) -> bool:
    """Whether a GET succeeds."""
    try:
        with urllib.request.urlopen(address, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def free_port() -> int:
    """A port with no listener."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
