"""The deployments of the project name things that exist."""

import inspect
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from flows.dvc_repo import open_repo
from flows.scheduled import scheduled, served
from flows.sweep.pool import DEPLOYMENT, sweep_cell
from stages.runtime.errors import UserError
from tests.flows.operated import Operated, answers, free_port
from tests.flows.test_pipeline import environment, toy
from tests.flows.toy import git
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance


ROOT = Path(__file__).parents[2]


def deployments() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
    return found


def test_a_run_on_demand_leaves_out_publish_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (on_demand,) = (each for each in deployments() if each["name"] == "on-demand")

    with open_repo() as repo:
        targets = on_demand["parameters"]["targets"]
        reached = {stage for target in targets for stage in repo.stage.collect(target, with_deps=True)}
        assert [stage.addressing for stage in {*repo.index.stages} - reached if stage.cmd] == ["publish"]


def test_what_is_served_is_what_prefect_yaml_has_for_work_pools(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    nightly, on_demand, _ = deployments()

    for found, expected in zip(served(), (nightly, on_demand), strict=True):
        assert (found.name, found.parameters) == (expected["name"], expected["parameters"])
        assert found.concurrency_options is not None
        strategy = found.concurrency_options.collision_strategy.value
        assert expected["concurrency_limit"] == {"limit": found.concurrency_limit, "collision_strategy": strategy}
        schedules = [
            {"active": one.active, **one.schedule.model_dump(include={"cron", "timezone"})}
            for one in found.schedules or ()
        ]
        assert schedules == expected.get("schedules", [])

    for wrong, said in (
        ({"pausd": True}, "pausd"),
        ({"schedules": [{"cron": "0 2 * * *", "timezon": "UTC"}]}, "timezon"),
    ):
        (tmp_path / "prefect.yaml").write_text(yaml.safe_dump({"deployments": [on_demand | wrong]}))
        with pytest.raises(UserError, match=f"on-demand: `parrotflow serve` cannot take this: .*{said}"):
            served(tmp_path / "prefect.yaml")
    (tmp_path / "prefect.yaml").write_text(yaml.safe_dump({"deployments": [on_demand | {"paused": True}]}))
    assert served(tmp_path / "prefect.yaml")[0].paused
    del on_demand["concurrency_limit"]
    (tmp_path / "prefect.yaml").write_text(yaml.safe_dump({"deployments": [on_demand]}))
    with pytest.raises(UserError, match="on-demand: no concurrency_limit"):
        served(tmp_path / "prefect.yaml")


def test_the_deployments_name_flows_with_parameters_that_they_have_and_run_in_the_folder_of_their_worker() -> None:
    nightly, on_demand, cell = deployments()

    assert nightly["schedules"] == [{"cron": "0 2 * * *", "timezone": "UTC", "active": True}]
    assert "schedules" not in on_demand | cell
    assert "concurrency_limit" not in cell
    for one, flow in ((nightly, scheduled), (on_demand, scheduled), (cell, sweep_cell)):
        path, _, name = one["entrypoint"].partition(":")
        assert (ROOT / path).samefile(inspect.getfile(flow.fn))
        assert name == flow.fn.__name__
        assert one.get("parameters", {}).keys() <= inspect.signature(flow.fn).parameters.keys()
        assert one["work_pool"]["job_variables"] == {"working_dir": "."}
        assert "pull" not in one
    assert f"{sweep_cell.name}/{cell['name']}" == DEPLOYMENT
    (step,) = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))["pull"]
    assert list(step) == ["prefect.deployments.steps.set_working_directory"]


STAGE = "stages:\n  one: {cmd: echo 1 > one.txt, outs: [one.txt]}\n"


@contextmanager
def serving(folder: Path, **variables: str) -> Iterator[Operated]:
    """The pages and what is served, as they are started in two terminals; ended with Ctrl-C."""
    address = f"http://127.0.0.1:{(port := free_port())}/api"
    (folder.parent / "home").mkdir(exist_ok=True)
    own = environment(folder.parent / "home", server=False) | {"PREFECT_RUNNER_POLL_FREQUENCY": "1"} | variables
    # Programs that a shell starts in the background ignore Ctrl-C, and so would theirs.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "flows.cli"]
    with (
        subprocess.Popen([*command, "ui", "--port", str(port)], cwd=folder, env=own) as pages,
        ended_by_ctrl_c(pages),
    ):
        wait_until(lambda: answers(f"{address}/health"))
        own |= {"PREFECT_API_URL": address}
        with subprocess.Popen([*command, "serve"], cwd=folder, env=own) as serves, ended_by_ctrl_c(serves):
            yield Operated(address, own)


@contextmanager
def ended_by_ctrl_c(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def test_no_other_web_page_can_start_a_served_run_and_its_results_go_to_their_branch(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", STAGE)
    (folder / "flows").symlink_to(ROOT / "flows")
    shutil.copyfile(ROOT / "prefect.yaml", folder / "prefect.yaml")
    subprocess.run(["git", "checkout", "-q", "-B", "main"], cwd=folder, check=True)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")
    shutil.copyfile(ROOT / "prefect.toml", folder / "prefect.toml")
    with serving(folder) as server:
        names = {"deployments": {"name": {"any_": ["on-demand"]}}}
        (found,) = wait_until(lambda: server.post("deployments/filter", **names))
        address = f"{server.address}/deployments/{found['id']}/create_flow_run"

        elsewhere = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
        allowed = httpx.options(address, headers=elsewhere, timeout=180).headers
        assert "access-control-allow-origin" not in allowed
        parameters = {"targets": ["one"], "pull": False, "push": False}
        run = server.post(f"deployments/{found['id']}/create_flow_run", parameters=parameters)
        wait_until(lambda: server.post("flow_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})[0]["end_time"])

    written = subprocess.check_output(["git", "show", "results:dvc.lock"], cwd=folder, text=True)
    assert "one.txt" in written
