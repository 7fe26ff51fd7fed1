"""Runs as Prefect records them, on a real server: graph, states, retries, logs, artifacts."""

import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.flows.operated import Operated
from tests.flows.run.test_one_run import FLAKY
from tests.flows.test_pipeline import toy
from tests.small_project import PARROTFLOW, run_module
from tests.waiting import wait_until

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


def run(server: Operated, folder: Path) -> "subprocess.CompletedProcess[str]":
    return run_module(PARROTFLOW, ["run"], folder, server.environment)


def the_run(server: Operated, done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """The flow run whose page a run names in its last line, once it has ended."""
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"In the Prefect UI: {server.address.removesuffix('/api')}/runs/flow-run/"), done.stdout
    filters = {"flow_runs": {"id": {"any_": [last.rpartition("/")[2]]}}}
    found = wait_until(lambda: [item for item in server.post("flow_runs/filter", **filters) if item["end_time"]])
    return dict(found[0])


def tasks(server: Operated, run_id: str, **states: str) -> dict[str, dict[str, Any]]:
    """The tasks of a flow run, once their states have these names."""

    def read() -> dict[str, dict[str, Any]]:
        found = server.post("task_runs/filter", flow_runs={"id": {"any_": [run_id]}})
        named = {task["name"]: task for task in found}
        return named if {name: task["state_name"] for name, task in named.items()} == states else {}

    return dict(wait_until(read))


def test_a_run_is_seen_with_its_graph_its_states_its_logs_and_its_page(shared_server: Operated, tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", TWO)

    done = run(shared_server, folder)

    assert done.returncode == 0, done.stdout + done.stderr
    flow_run = the_run(shared_server, done)
    assert flow_run["state_name"] == "Completed"
    seen = tasks(shared_server, flow_run["id"], first="Ran", second="Ran")
    assert seen["first"]["total_run_time"] >= 2
    assert seen["second"]["task_inputs"]["wait_for"] == [{"input_type": "task_run", "id": seen["first"]["id"]}]
    logs = shared_server.post("logs/filter", logs={"task_run_id": {"any_": [seen["first"]["id"]]}})
    line = next(log for log in logs if log["message"] == "one")
    started, printed = map(datetime.fromisoformat, (seen["first"]["start_time"], line["timestamp"]))
    assert started.timestamp() + 2 <= printed.timestamp() <= (folder / "second.txt").stat().st_mtime
    (page,) = shared_server.post("artifacts/filter", flow_runs={"id": {"any_": [flow_run["id"]]}})
    assert page["key"] == "pipeline"
    assert "| first | ran |" in page["data"]
    assert "| loss | 1.5 |" in page["data"]

    (folder / "second.txt").unlink()
    tasks(shared_server, the_run(shared_server, run(shared_server, folder))["id"], second="Restored")


def test_a_failure_has_the_stages_own_message_and_what_depends_on_it_is_in_the_graph(
    shared_server: Operated, tmp_path: Path
) -> None:
    done = run(shared_server, toy(tmp_path / "toy", FAILING))

    assert done.returncode == 1
    flow_run = the_run(shared_server, done)
    assert flow_run["state_name"] == "Failed"
    assert flow_run["state"]["message"] == "one: no corpus"
    seen = tasks(shared_server, flow_run["id"], one="Failed", two="Cancelled")
    assert seen["two"]["task_inputs"]["wait_for"] == [{"input_type": "task_run", "id": seen["one"]["id"]}]
    assert seen["two"]["end_time"]  # else the bar of its graph would grow for ever


def test_a_retry_is_one_of_prefects(shared_server: Operated, tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", FLAKY)
    (folder / "fetch.sh").write_text("echo try >> tries\n[ $(wc -l < tries) = 2 ] || exit 69\ncp tries data.txt\n")

    done = run(shared_server, folder)

    assert done.returncode == 0
    assert tasks(shared_server, the_run(shared_server, done)["id"], fetch="Ran")["fetch"]["run_count"] == 2


def test_20000_lines_of_a_stage_are_logged_and_shown(shared_server: Operated, tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: seq 20000 && echo 1 > one.txt, outs: [one.txt]}\n")

    done = run(shared_server, folder)

    assert done.stdout.count("one │ ") == 20002
    (one,) = tasks(shared_server, the_run(shared_server, done)["id"], one="Ran").values()
    filters = {"logs": {"task_run_id": {"any_": [one["id"]]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
    printed: list[str] = []
    for offset in range(0, 2000, 200):
        logs = shared_server.post("logs/filter", offset=offset, **filters)
        printed += [line for log in logs for line in log["message"].split("\n") if line.isdecimal()]
    assert printed == [str(number) for number in range(1, 20001)]
