"""Runs in Prefect's pages: recorded by a process of its own, with true times, on a real server."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.run.record import RUNS, parse, recorded_runs, replies
from flows.show.recorder import CANCEL_SECONDS
from tests.flows.operated import Operated, free_port, operated, wait_until
from tests.flows.test_pipeline import environment, toy

TWO = """\
stages:
  first: {cmd: sleep 2 && echo one && echo 1 > first.txt, outs: [first.txt]}
  second:
    cmd: "cp first.txt second.txt && echo '{\\"loss\\": 1.5}' > loss.json"
    deps: [first.txt]
    outs: [second.txt]
    metrics: [loss.json: {cache: false}]
"""

FAILING = "stages:\n  one: {cmd: 'echo error: no corpus && exit 2', outs: [one.txt]}\n"
RUN = [sys.executable, "-m", "flows.cli", "run"]

SLOW_TO_END = """
import os, signal, subprocess, sys, time
from pathlib import Path
from flows.run.record import RunEnded, RunRecord, RunStarted

told = []
signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
record = RunRecord(Path("runs"))
record.write(RunStarted(run="slow-to-end", pid=os.getpid(), options={}, stages=()))
recorder = subprocess.Popen([sys.executable, "-m", "flows.show.recorder", str(record.path)])
while not told:
    time.sleep(0.1)
time.sleep(4 * float(sys.argv[1]))
record.write(RunEnded(state="Cancelled", message=""))
recorder.wait()
print(len(told))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    with operated(tmp_path_factory.mktemp("operated")) as running:
        yield running


def run(server: Operated, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(RUN, cwd=folder, env=server.environment, capture_output=True, text=True, check=False)


def the_run(server: Operated, folder: Path) -> dict[str, Any]:
    """The flow run of the folder's newest record, once it has ended."""
    name = recorded_runs(folder / RUNS)[-1].stem
    filters = {"flow_runs": {"name": {"any_": [name]}}}
    found = wait_until(lambda: [item for item in server.post("flow_runs/filter", **filters) if item["end_time"]], 180)
    return dict(found[0])


def tasks(server: Operated, run_id: str, count: int) -> dict[str, dict[str, Any]]:
    def read() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = server.post("task_runs/filter", flow_runs={"id": {"any_": [run_id]}})
        return found if len(found) == count and all(item["end_time"] for item in found) else []

    return {task["name"]: task for task in wait_until(read, 180)}


def artifacts(server: Operated, run_id: str, count: int) -> dict[str, dict[str, Any]]:
    def read() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = server.post("artifacts/filter", flow_runs={"id": {"any_": [run_id]}})
        return found if len(found) >= count else []

    return {item["key"]: item for item in wait_until(read, 180)}


def test_a_run_is_seen_with_its_graph_its_states_its_logs_and_true_times(server: Operated, tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", TWO)

    done = run(server, folder)

    assert done.returncode == 0, done.stdout + done.stderr
    flow_run = the_run(server, folder)
    assert done.stdout.splitlines()[-1].endswith(f"/runs/flow-run/{flow_run['id']}")
    assert flow_run["state"]["name"] == "Completed"
    seen = tasks(server, flow_run["id"], 2)
    assert {name: task["state"]["name"] for name, task in seen.items()} == {"first": "Ran", "second": "Ran"}
    assert 2 <= seen["first"]["total_run_time"] < 20
    events = [parse(line) for line in recorded_runs(folder / RUNS)[-1].read_text().splitlines()]
    started = next(event.time for event in events if type(event).__name__ == "StageStarted")
    assert datetime.fromisoformat(seen["first"]["start_time"]) == datetime.fromisoformat(started)
    assert seen["second"]["task_inputs"]["stages"] == [{"input_type": "task_run", "id": seen["first"]["id"]}]
    logs = server.post("logs/filter", logs={"task_run_id": {"any_": [seen["first"]["id"]]}})
    line = next(log for log in logs if log["message"] == "one")
    said = next(event.time for event in events if "one" in getattr(event, "texts", ()))
    assert datetime.fromisoformat(line["timestamp"]) == datetime.fromisoformat(said)
    shown = artifacts(server, flow_run["id"], 2)
    assert "| first | ran |" in shown["pipeline"]["data"]
    assert json.loads(shown["metrics"]["data"]) == [{"metric": "loss.loss", "now": 1.5, "before": "", "difference": ""}]


def test_a_failure_is_a_failed_run_with_the_stages_own_message(server: Operated, tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", FAILING)

    assert run(server, folder).returncode == 1

    flow_run = the_run(server, folder)
    assert flow_run["state"]["name"] == "Failed"
    assert flow_run["state"]["message"] == "one: error: no corpus"


def test_20000_lines_are_logged_and_hold_nothing_up(server: Operated, tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: seq 20000 && echo 1 > one.txt, outs: [one.txt]}\n")
    began = time.monotonic()

    assert run(server, folder).returncode == 0

    assert time.monotonic() - began < 30
    flow_run = the_run(server, folder)
    filters = {"logs": {"flow_run_id": {"any_": [flow_run["id"]]}}, "sort": "TIMESTAMP_DESC", "limit": 200}
    wait_until(lambda: [log["message"] for log in server.post("logs/filter", **filters)][:1] == ["20000"], 120)


def test_a_run_that_is_killed_ends_as_crashed_and_leaves_no_recorder(server: Operated, tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: sleep 5 && echo 1 > one.txt, outs: [one.txt]}\n")
    process = subprocess.Popen(RUN, cwd=folder, env=server.environment, stdout=subprocess.PIPE, text=True)
    record = wait_until(lambda: recorded_runs(folder / RUNS), 120)[0]
    wait_until(lambda: any("page" in message for message in replies(record)), 120)

    process.kill()
    process.wait()

    assert the_run(server, folder)["state"]["name"] == "Crashed"


def test_a_run_that_is_slow_to_end_is_told_once_that_it_was_cancelled(server: Operated, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW_TO_END, str(CANCEL_SECONDS)]
    process = subprocess.Popen(command, cwd=tmp_path, env=server.environment, stdout=subprocess.PIPE, text=True)
    named = {"flow_runs": {"name": {"any_": ["slow-to-end"]}}}
    (found,) = wait_until(lambda: server.post("flow_runs/filter", **named), 120)

    server.post(f"flow_runs/{found['id']}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})

    said, _ = process.communicate(timeout=120)
    assert said.strip() == "1"


def test_a_server_that_does_not_answer_costs_one_line(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: echo 1 > one.txt, outs: [one.txt]}\n")
    (tmp_path / "home").mkdir()
    dead = {"PREFECT_API_URL": f"http://127.0.0.1:{free_port()}/api"}
    began = time.monotonic()

    done = subprocess.run(
        RUN, cwd=folder, env=environment(tmp_path / "home") | dead, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0
    assert time.monotonic() - began < 20
    assert "Traceback" not in done.stdout + done.stderr
    assert "does not answer" in done.stdout


def test_the_pages_show_earlier_runs_with_their_times_and_only_to_who_has_the_key(tmp_path: Path) -> None:
    folder, port = toy(tmp_path / "toy", TWO), free_port()
    (tmp_path / "home").mkdir()
    variables = environment(tmp_path / "home")
    subprocess.run(RUN, cwd=folder, env=variables, check=True, capture_output=True)
    written = datetime.fromtimestamp((folder / "loss.json").stat().st_mtime).astimezone()
    ended = datetime.now().astimezone()
    command = [sys.executable, "-m", "flows.cli", "ui", "--port", str(port)]
    pages = subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True)
    try:
        assert pages.stdout is not None
        said = [pages.stdout.readline() for _ in range(3)]
        assert said[2] == "1 earlier runs are in the pages now\n", said
        api = f"http://127.0.0.1:{port}/api"
        key = tuple(said[1].split()[1].split(":"))
        assert httpx.post(f"{api}/flow_runs/filter", json={}, timeout=180).status_code == 401
        elsewhere = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
        allowed = httpx.options(f"{api}/flow_runs/filter", headers=elsewhere, timeout=180).headers
        assert "access-control-allow-origin" not in allowed
        answer = httpx.post(f"{api}/flow_runs/filter", json={}, auth=key, timeout=180)  # type: ignore[arg-type]
        (flow_run,) = answer.json()
        assert written < datetime.fromisoformat(flow_run["end_time"]) < ended
        assert 2 <= flow_run["total_run_time"] < 20

        (folder / "first.txt").unlink()
        (folder / "dvc.yaml").write_text(TWO.replace("sleep 2", "sleep 1"))
        live = subprocess.run(RUN, cwd=folder, env=variables, check=True, capture_output=True, text=True)
        assert f"In Prefect's pages: http://127.0.0.1:{port}/runs/flow-run/" in live.stdout
    finally:
        os.kill(pages.pid, signal.SIGTERM)
        assert pages.wait(60) == 0
    assert not (folder / ".parrotflow/server.json").exists()
