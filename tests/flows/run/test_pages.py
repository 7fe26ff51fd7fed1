"""Runs in Prefect's pages, on a real server: graph, states, logs, artifacts; and servers that are not there."""

import base64
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from flows.pipeline_run import run_artifacts
from flows.plan.graph import Plan, PlannedStage
from flows.plan.settings import Policy
from flows.run.outcome import StageOutcome
from flows.run.pages import draw
from flows.run.server import answers
from tests.flows.operated import Operated, free_port, operated, wait_until
from tests.flows.test_pipeline import environment, processes_in, toy
from tests.forked import PARROTFLOW, run_forked

pytestmark = pytest.mark.acceptance


TWO = """\
stages:
  first: {cmd: sleep 2 && echo one && echo 1 > first.txt, outs: [first.txt]}
  second:
    cmd: "cp first.txt second.txt && echo '{\\"loss\\": 1.5}' > loss.json"
    deps: [first.txt]
    outs: [second.txt]
    metrics: [loss.json: {cache: false}]
    meta: {flow: {show: {metrics: {loss: "loss.json:loss"}}}}
"""

FAILING = """\
stages:
  one: {cmd: 'echo error: no corpus && exit 2', outs: [one.txt]}
  two: {cmd: cp one.txt two.txt, deps: [one.txt], outs: [two.txt]}
"""

FLAKY = """\
stages:
  fetch:
    cmd: sh fetch.sh
    outs: [data.txt]
    meta: {flow: {retries: 1, retry_delay_seconds: 0}}
"""

RUN = [sys.executable, "-m", "flows.cli", "run"]


@pytest.fixture
def server(shared_server: Operated) -> Operated:
    return shared_server


def run(server: Operated, folder: Path) -> "subprocess.CompletedProcess[str]":
    return run_forked(PARROTFLOW, ["run"], folder, server.environment)


def the_run(server: Operated, done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """The flow run whose page a run names in its last line, once it has ended."""
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"In Prefect's pages: {server.address.removesuffix('/api')}/runs/flow-run/"), done.stdout
    return ended(server, last.rpartition("/")[2])


def ended(server: Operated, id_: str) -> dict[str, Any]:
    filters = {"flow_runs": {"id": {"any_": [id_]}}}
    found = wait_until(lambda: [item for item in server.post("flow_runs/filter", **filters) if item["end_time"]], 180)
    return dict(found[0])


def tasks(server: Operated, run_id: str, **states: str) -> dict[str, dict[str, Any]]:
    """The tasks of a flow run, once their states have these names."""

    def read() -> dict[str, dict[str, Any]]:
        found = server.post("task_runs/filter", flow_runs={"id": {"any_": [run_id]}})
        # One that never began has a number after its name.
        named = {task["name"].partition("-")[0]: task for task in found}
        return named if {name: task["state_name"] for name, task in named.items()} == states else {}

    return dict(wait_until(read, 180))


def artifacts(server: Operated, run_id: str, count: int) -> dict[str, dict[str, Any]]:
    def read() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = server.post("artifacts/filter", flow_runs={"id": {"any_": [run_id]}})
        return found if len(found) >= count else []

    return {item["key"]: item for item in wait_until(read, 180)}


def test_a_run_is_seen_with_its_graph_its_states_its_logs_and_its_artifacts(server: Operated, tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", TWO)

    done = run(server, folder)

    assert done.returncode == 0, done.stdout + done.stderr
    flow_run = the_run(server, done)
    assert flow_run["state_name"] == "Completed"
    seen = tasks(server, flow_run["id"], first="Ran", second="Ran")
    assert 2 <= seen["first"]["total_run_time"] < 200
    assert seen["second"]["task_inputs"]["before"] == [{"input_type": "task_run", "id": seen["first"]["id"]}]
    logs = server.post("logs/filter", logs={"task_run_id": {"any_": [seen["first"]["id"]]}})
    line = next(log for log in logs if log["message"] == "one")
    started, printed = map(datetime.fromisoformat, (seen["first"]["start_time"], line["timestamp"]))
    assert started.timestamp() + 2 <= printed.timestamp() <= (folder / "second.txt").stat().st_mtime
    page = artifacts(server, flow_run["id"], 1)["pipeline"]["data"]
    assert "| first | ran |" in page
    assert "| loss | 1.5 |" in page

    (folder / "second.txt").unlink()
    again = run(server, folder)
    tasks(server, the_run(server, again)["id"], second="Restored")


def test_a_failure_has_the_stages_own_message_and_what_hangs_on_it_is_in_the_graph(
    server: Operated, tmp_path: Path
) -> None:
    done = run(server, toy(tmp_path / "toy", FAILING))

    assert done.returncode == 1
    flow_run = the_run(server, done)
    assert flow_run["state_name"] == "Failed"
    assert flow_run["state"]["message"] == "one: error: no corpus"
    tasks(server, flow_run["id"], one="Failed", two="NotReady")


def test_a_retry_is_one_of_prefects(server: Operated, tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", FLAKY)
    (folder / "fetch.sh").write_text("echo try >> tries\n[ $(wc -l < tries) = 2 ] || exit 69\ncp tries data.txt\n")

    done = run(server, folder)

    assert done.returncode == 0
    assert tasks(server, the_run(server, done)["id"], fetch="Ran")["fetch"]["run_count"] == 2


def test_20000_lines_of_a_stage_are_logged(server: Operated, tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: seq 20000 && echo 1 > one.txt, outs: [one.txt]}\n")

    done = run(server, folder)

    assert done.returncode == 0
    (one,) = tasks(server, the_run(server, done)["id"], one="Ran").values()
    filters = {"logs": {"task_run_id": {"any_": [one["id"]]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
    printed: list[str] = []
    for offset in range(0, 2000, 200):
        logs = server.post("logs/filter", offset=offset, **filters)
        printed += [line for log in logs for line in log["message"].split("\n") if line.isdecimal()]
    assert printed == [str(number) for number in range(1, 20001)]


def test_a_server_that_does_not_answer_costs_one_line_and_the_run_is_recorded_here(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: echo 1 > one.txt, outs: [one.txt]}\n")
    (tmp_path / "home").mkdir()
    dead = {"PREFECT_API_URL": f"http://127.0.0.1:{free_port()}/api"}

    done = subprocess.run(
        RUN, cwd=folder, env=environment(tmp_path / "home") | dead, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stdout.count("does not answer") == 1
    assert done.stdout.splitlines()[-1] == "To look at this run and earlier ones: parrotflow ui"


def test_an_address_that_is_none_or_leads_to_another_program_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            caller, _ = listening.accept()
            with caller:
                caller.sendall(b"SSH-2.0-OpenSSH\r\n")

        threading.Thread(target=greet).start()
        found = answers(f"http://127.0.0.1:{listening.getsockname()[1]}/api/health")

    assert [found, answers("localhost"), answers("http://HOST:PORT/api/health")] == [False] * 3


def test_a_server_that_goes_away_for_good_costs_one_line(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: sleep 3 && echo 1 > one.txt, outs: [one.txt]}\n")
    with operated(tmp_path / "home") as gone:
        process = subprocess.Popen(
            RUN, cwd=folder, env=gone.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        next(line for line in process.stdout if "started" in line)

    said, _ = process.communicate(timeout=180)

    assert process.returncode == 0, said
    assert (folder / "one.txt").exists()
    assert "Traceback" not in said
    assert "Error logging" not in said
    assert said.count("warning: ") == 1
    assert "warning: Prefect's server went away; every result is kept, its pages lack the end" in said
    assert "s in total" in said


def test_the_pages_show_earlier_runs_only_to_who_has_the_key_and_no_server_outlives_a_run(tmp_path: Path) -> None:
    folder, port = toy(tmp_path / "toy", TWO), free_port()
    (folder / ".gitignore").unlink()
    (tmp_path / "home").mkdir()
    variables = environment(tmp_path / "home", server=False)
    first = subprocess.run(RUN, cwd=folder, env=variables, check=True, capture_output=True, text=True)
    assert first.stdout.splitlines()[-1] == "To look at this run and earlier ones: parrotflow ui"
    assert processes_in(folder) == []
    assert not (tmp_path / "home/.prefect").exists()
    status = subprocess.run(["git", "status", "--short"], cwd=folder, capture_output=True, text=True, check=True)
    assert ".parrotflow" not in status.stdout
    killed = {"api": f"http://127.0.0.1:{free_port()}/api", "pid": os.getpid()}
    (folder / ".parrotflow/server.json").write_text(json.dumps(killed))
    command = [sys.executable, "-m", "flows.cli", "ui", "--port", str(port)]
    pages = subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True)
    try:
        assert pages.stdout is not None
        said = [pages.stdout.readline() for _ in range(2)]
        api = f"http://127.0.0.1:{port}/api"
        key = tuple(said[1].split()[1].split(":"))
        assert httpx.post(f"{api}/flow_runs/filter", json={}, timeout=180).status_code == 401
        elsewhere = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
        allowed = httpx.options(f"{api}/flow_runs/filter", headers=elsewhere, timeout=180).headers
        assert "access-control-allow-origin" not in allowed
        own = Operated(api, {}, key)  # type: ignore[arg-type]
        (flow_run,) = own.post("flow_runs/filter")
        assert flow_run["state_name"] == "Completed"
        assert 2 <= flow_run["total_run_time"] < 200
        tasks(own, flow_run["id"], first="Ran", second="Ran")
        assert "| first | ran |" in artifacts(own, flow_run["id"], 1)["pipeline"]["data"]

        (folder / "first.txt").unlink()
        (folder / "dvc.yaml").write_text(TWO.replace("sleep 2", "sleep 1"))
        live = subprocess.run(RUN, cwd=folder, env=variables, check=True, capture_output=True, text=True)
        assert f"In Prefect's pages: http://127.0.0.1:{port}/runs/flow-run/" in live.stdout
    finally:
        os.kill(pages.pid, signal.SIGTERM)
        assert pages.wait(60) == 0
    assert not (folder / ".parrotflow/server.json").exists()


def test_the_curves_of_a_run_are_one_picture_and_an_earlier_record_is_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loss.tsv").write_text("step\tloss\n0\t3.0\n10\t1.0\n")
    curves = [{"title": "loss", "series": {"training": "loss.tsv:loss", "held out": "none.tsv:loss"}}]
    policy = Policy.model_validate({"show": {"curves": curves}})
    plan = Plan((PlannedStage("train", "run", (), (), policy),))

    page, shown = run_artifacts(plan, {"train": StageOutcome("train", "ran")})

    assert "| train | ran |" in page.data
    (figure,) = shown.data
    assert figure["series"] == {"training": [(0.0, 3.0), (10.0, 1.0)]}
    png = base64.b64decode(draw(shown.data).partition(",")[2])
    assert Image.open(io.BytesIO(png)).size[0] > 100
