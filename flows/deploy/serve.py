"""`parrotflow serve`: the deployments of prefect.yaml on one machine, without a work pool and a worker.

Unless `PREFECT_API_URL` names a server, one is started in the project's own folder, with its pages on loopback.
"""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from stages.runtime.entry import UserError

PREFECT_YAML = Path("prefect.yaml")
START_SECONDS = 120.0


@contextmanager
def server(port: int) -> Iterator[str]:
    """The address of Prefect's API: that of `PREFECT_API_URL`, or of a server that lives as long as this context."""
    if address := os.environ.get("PREFECT_API_URL"):
        yield address
        return
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    address = f"http://127.0.0.1:{port}/api"
    # Its pages ask for data at port 4200, unless told otherwise.
    environment = os.environ | {
        "PREFECT_SERVER_UI_API_URL": address,
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    }
    log = Path(".parrotflow/server.log")
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        _wait_for(address, process, log)
        os.environ["PREFECT_API_URL"] = address
        yield address
    finally:
        process.terminate()
        process.wait()


def _wait_for(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise UserError(
        f"Prefect's server did not start at {address} (is the port in use? --port names another); see {log}"
    )


def serve_deployments() -> None:
    """Serve every deployment of prefect.yaml until stopped."""
    from prefect import serve

    from flows.scheduled import scheduled

    prepared: list[Any] = []
    for entry in yaml.safe_load(PREFECT_YAML.read_text(encoding="utf-8"))["deployments"]:
        schedule = (entry.get("schedules") or [{}])[0]
        prepared.append(
            scheduled.to_deployment(
                entry["name"],
                cron=schedule.get("cron"),
                interval=schedule.get("interval"),
                description=entry.get("description"),
                parameters=entry.get("parameters"),
                concurrency_limit=entry.get("concurrency_limit", {}).get("limit"),
            )
        )
    serve(*prepared)
