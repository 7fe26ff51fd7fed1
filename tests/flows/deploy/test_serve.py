"""`parrotflow serve`: the deployments of prefect.yaml, on a server that answers its owner alone."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from tests.flows.operated import free_port, wait_until
from tests.flows.test_pipeline import environment, toy

ROOT = Path(__file__).parents[3]


def test_the_deployments_are_served_and_nobody_without_the_key_can_start_or_change_one(tmp_path: Path) -> None:
    folder, port = toy(tmp_path / "toy", "stages:\n  one: {cmd: echo 1 > one.txt, outs: [one.txt]}\n"), free_port()
    shutil.copyfile(ROOT / "prefect.yaml", folder / "prefect.yaml")
    (tmp_path / "home").mkdir()
    # Programs that a shell starts in the background ignore Ctrl-C, and so would theirs.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "flows.cli", "serve", "--port", str(port)]
    variables = environment(tmp_path / "home") | {"HF_TOKEN": "a-secret-of-mine"}
    serving = subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True)
    try:
        assert serving.stdout is not None
        said = [serving.stdout.readline() for _ in range(2)]
        key = tuple(said[1].split()[1].split(":"))
        deployments = f"http://127.0.0.1:{port}/api/deployments"

        def served() -> list[dict[str, object]]:
            found = httpx.post(f"{deployments}/filter", json={}, auth=key, timeout=180).json()  # type: ignore[arg-type]
            return found if len(found) == 3 else []

        found = wait_until(served, 180)

        assert {item["name"] for item in found} == {"nightly", "on-demand", "sweep"}
        assert not [item for item in found if {"source", "folder"} & set(item["parameters"])]
        stranger = httpx.post(f"{deployments}/{found[0]['id']}/create_flow_run", json={}, timeout=180)
        assert stranger.status_code == 401
        assert (folder / ".parrotflow/prefect/key").stat().st_mode & 0o077 == 0
        server = int(
            subprocess.check_output(["pgrep", "-o", "-f", f"server start --host 127.0.0.1 --port {port}"], text=True)
        )
        assert b"a-secret-of-mine" not in Path(f"/proc/{server}/environ").read_bytes()
    finally:
        os.kill(serving.pid, signal.SIGINT)
        serving.wait(120)
