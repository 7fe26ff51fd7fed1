"""The server of a run: a child that ends with it, or one that is named; and servers that are not there."""

import re
import subprocess
from pathlib import Path

import httpx
import psutil
import pytest

from flows.run.server import start_server
from stages.runtime.errors import UserError
from tests.flows.operated import Operated, answers, free_port, operated
from tests.flows.test_pipeline import COMMAND, environment, processes_in, toy
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance

ONE = "stages:\n  one: {cmd: sleep 3 && echo 1 > one.txt, outs: [one.txt]}\n"


def test_a_server_that_does_not_answer_is_refused_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.run.server.ANSWER_SECONDS", 0.2)

    for api in (f"http://127.0.0.1:{free_port()}/api", "localhost", "http://HOST:PORT/api"):
        monkeypatch.setenv("PREFECT_API_URL", api)
        with pytest.raises(UserError, match=f"no Prefect server answers at {api}: `parrotflow ui`"):
            start_server().wait()


def test_a_server_that_goes_away_for_good_costs_one_line(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", ONE)
    with operated(tmp_path / "home") as gone:
        process = subprocess.Popen(
            COMMAND, cwd=folder, env=gone.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        next(line for line in process.stdout if "started" in line)

    said, _ = process.communicate()

    assert process.returncode == 0, said
    assert (folder / "one.txt").exists()
    for noise in ("Traceback", "Error logging", "ERROR"):
        assert noise not in said
    assert said.count("warning: ") == 1
    assert "warning: Prefect's server went away; all results are kept" in said
    assert re.search(r"^time +\d+ s", said, re.MULTILINE)


def ports(process: int) -> set[int]:
    """Those at which a process's children listen."""
    children = psutil.Process(process).children()
    found = [one for child in children for one in child.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    return {one.laddr.port for one in found}


def test_a_runs_own_server_asks_for_its_key_and_ends_with_it_and_prefects_ui_shows_the_run(tmp_path: Path) -> None:
    folder, port = toy(tmp_path / "toy", ONE), free_port()
    (folder / ".gitignore").unlink()
    (tmp_path / "home").mkdir()
    variables = environment(tmp_path / "home", server=False)
    process = subprocess.Popen(COMMAND, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    next(line for line in process.stdout if "started" in line)
    (port_of_run,) = ports(process.pid)
    own = f"http://127.0.0.1:{port_of_run}/api"
    assert httpx.post(f"{own}/flow_runs/filter", json={}, timeout=180).status_code == 401

    said, _ = process.communicate()

    assert said.splitlines()[-1] == "To look at this run and earlier ones: parrotflow ui"
    wait_until(lambda: processes_in(folder) == [])
    assert not (tmp_path / "home/.prefect").exists()
    status = subprocess.run(["git", "status", "--short"], cwd=folder, capture_output=True, text=True, check=True)
    assert ".parrotflow" not in status.stdout
    ui = subprocess.Popen([*COMMAND[:-1], "ui", "--port", str(port)], cwd=folder, env=variables)
    try:
        server = Operated(f"http://127.0.0.1:{port}/api", {})
        wait_until(lambda: answers(f"{server.address}/health"))
        (flow_run,) = server.post("flow_runs/filter")
        assert flow_run["state_name"] == "Completed"
        assert list(wait_until(lambda: server.task_states(flow_run["id"])).values()) == ["Ran"]
    finally:
        ui.terminate()
        ui.wait()
