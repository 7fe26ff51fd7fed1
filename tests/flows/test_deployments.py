"""The deployments of the project name things that exist."""

import inspect
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import httpx
import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun

from flows.deployments import drop_missed_runs, work_pools
from flows.scheduled import scheduled
from flows.sweep.pool import DEPLOYMENT
from flows.sweep_cell import sweep_cell
from stages.runtime.entry import UserError
from tests.flows.operated import Operated, free_port, operated, wait_until
from tests.flows.test_pipeline import environment, toy

ROOT = Path(__file__).parents[2]


def deployments() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
    return found


def test_every_deployment_starts_the_flow_with_parameters_that_it_has() -> None:
    flows = {f"flows/scheduled.py:{flow.fn.__name__}": flow for flow in (scheduled,)}

    for deployment in deployments():
        if deployment["name"] == "sweep-cell":
            continue
        parameters = inspect.signature(flows[deployment["entrypoint"]].fn).parameters
        assert set(deployment["parameters"]) <= set(parameters)
        assert {name for name, one in parameters.items() if one.default is one.empty} <= set(deployment["parameters"])
        assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}


def test_a_run_on_demand_leaves_out_publish_alone() -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    (on_demand,) = (each for each in deployments() if each["name"] == "on-demand")
    todo, reached = list(on_demand["parameters"]["targets"]), set[str]()
    makers = {
        next(iter(out)) if isinstance(out, dict) else out: name
        for name, stage in stages.items()
        for kind in ("outs", "metrics", "plots")
        for out in stage.get(kind, ())
    }
    while todo:
        name = todo.pop()
        reached.add(name)
        todo += [
            maker for out, maker in makers.items() for dep in stages[name]["deps"] if f"{dep}/".startswith(f"{out}/")
        ]

    assert stages.keys() - reached == {"publish"}


def test_one_deployment_is_nightly_and_the_others_are_started_by_a_person() -> None:
    nightly, on_demand, cell = deployments()

    assert nightly["schedules"] == [{"cron": "0 2 * * *", "timezone": "UTC", "active": True}]
    assert "schedules" not in on_demand | cell


@dataclass
class WaitingRuns:
    """What Prefect's client says of the runs that are due: two at a time, where a server gives 200."""

    runs: list[FlowRun]

    def read_flow_runs(self, *, flow_run_filter: FlowRunFilter, offset: int) -> list[FlowRun]:
        assert flow_run_filter.expected_start_time
        return self.runs[offset : offset + 2]

    def delete_flow_run(self, run: UUID) -> None:
        self.runs = [one for one in self.runs if one.id != run]


def test_of_the_runs_that_are_due_those_of_a_schedule_are_dropped_however_many_others_wait() -> None:
    by_schedule = [True, False, True, False, False, True, True]
    runs = [FlowRun(flow_id=uuid4(), auto_scheduled=one, run_count=0) for one in by_schedule]
    client = WaitingRuns(runs)

    drop_missed_runs(cast("SyncPrefectClient", client))

    assert client.runs == [run for run in runs if not run.auto_scheduled]


def test_every_deployment_runs_in_the_folder_of_its_worker_not_in_that_of_the_deployer() -> None:
    file = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))

    assert [list(step) for step in file["pull"]] == [["prefect.deployments.steps.set_working_directory"]]
    assert not [deployment for deployment in file["deployments"] if "pull" in deployment]


def test_cells_of_sweeps_run_beside_each_other_in_the_folder_of_their_worker() -> None:
    *_, cell = deployments()
    path, _, name = cell["entrypoint"].partition(":")

    assert (f"{sweep_cell.name}/{cell['name']}", name) == (DEPLOYMENT, sweep_cell.fn.__name__)
    assert (ROOT / path).samefile(inspect.getfile(sweep_cell.fn))
    assert "concurrency_limit" not in cell
    assert {one["work_pool"]["job_variables"]["working_dir"] for one in deployments()} == {"."}


STAGE = "stages:\n  one: {cmd: echo 1 > one.txt, outs: [one.txt]}\n"

FLOWS = """\
from prefect import flow

@flow(description="of the flow", version="of-the-flow")
def report(publish: bool = True, where: str = "here") -> str:
    from pathlib import Path
    Path("ran.txt").write_text(f"{Path.cwd()} {where}")
    return where

@flow
def other(number: int = 1) -> int:
    return number
"""

PREFECT_YAML = """\
pull:
  - prefect.deployments.steps.set_working_directory: {directory: .}
definitions:
  pool: &pool {name: machines, job_variables: {working_dir: ., env: {NIGHT: "1"}}}
deployments:
  - name: switched-off
    entrypoint: nasty.py:report
    description: Of the deployment.
    schedules:
      - {cron: "0 2 * * *", timezone: Europe/Berlin, active: false, day_or: false, slug: nightly}
    concurrency_limit: {limit: 1, collision_strategy: CANCEL_NEW, grace_period_seconds: 90}
    work_pool: *pool
  - name: two-times
    entrypoint: nasty.py:report
    schedules:
      - {cron: "0 3 * * *", timezone: America/New_York, slug: west, parameters: {publish: false}}
      - {cron: "0 15 * * *", timezone: Asia/Tokyo, slug: east, parameters: {where: Tokyo}}
    parameters: {where: everywhere}
    concurrency_limit: 2
    work_pool: *pool
  - name: by-rule
    entrypoint: nasty.py:report
    schedules: [{rrule: "FREQ=DAILY;BYHOUR=5", timezone: Europe/Paris}]
    work_pool: {name: machines, work_queue_name: urgent}
  - name: singular
    entrypoint: nasty.py:other
    schedule: {cron: "30 4 * * *", timezone: UTC}
    tags: [mine, yours]
    version: "7"
    enforce_parameter_schema: false
    pull:
      - prefect.deployments.steps.set_working_directory: {directory: "{{ $FOLDER }}"}
    work_pool: *pool
  - name: paused
    entrypoint: nasty.py:other
    paused: true
    schedules:
      - {interval: 3600, anchor_date: "2026-01-01T00:17:00+00:00", timezone: Europe/Berlin}
      - {interval: "PT5H", anchor_date: "2026-01-01T00:00:00+00:00"}
    triggers:
      - {enabled: true, match: {prefect.resource.id: "prefect.flow-run.*"}, expect: [prefect.flow-run.Crashed]}
    work_pool: *pool
  - name: by-hand
    entrypoint: nasty.py:report
    parameters: {where: at-hand}
    work_pool: {name: other-machines, job_variables: {working_dir: .}}
"""

OFTEN = """\
deployments:
  - name: often
    entrypoint: nasty.py:report
    schedules: [{{interval: 10}}]
    paused: {paused}
    work_pool: {{name: machines, job_variables: {{working_dir: .}}}}
"""

OF_A_SERVER = {"id", "created", "updated", "flow_id", "work_queue_id", "deployment_id", "owner_resource"}
OF_A_SERVER |= {"version_id", "version_info", "last_polled", "status", "global_concurrency_limit", "active_slots"}
OF_A_SERVER |= {"prefect.flow.id"}
"""What differs between any two servers to which the same prefect.yaml is deployed: identities, times and workers."""


@contextmanager
def serving(folder: Path, **variables: str) -> Iterator[Operated]:
    """The command, as it is started in a terminal; ended with Ctrl-C."""
    port = free_port()
    (folder.parent / "home").mkdir(exist_ok=True)
    # Programs that a shell starts in the background ignore Ctrl-C, and so would theirs.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "flows.cli", "serve", "--port", str(port)]
    own = environment(folder.parent / "home", server=False) | {"PREFECT_WORKER_QUERY_SECONDS": "1"} | variables
    process = subprocess.Popen(command, cwd=folder, env=own, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(2)]
        user, _, password = said[1].split()[1].partition(":")
        yield Operated(f"http://127.0.0.1:{port}/api", own, (user, password))
    finally:
        os.kill(process.pid, signal.SIGINT)
        process.wait(120)


def test_what_is_served_is_key_by_key_what_prefect_deploys(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", STAGE)
    (folder / "nasty.py").write_text(FLOWS)
    (folder / "prefect.yaml").write_text(PREFECT_YAML)
    with operated(tmp_path / "operated", FOLDER="/elsewhere") as server:
        for pool in ("machines", "other-machines"):
            server.prefect(folder, "work-pool", "create", pool, "--type", "process")
        server.prefect(folder, "deploy", "--all")
        deployed = {kind: server.post(f"{kind}/filter") for kind in ("deployments", "automations")}
    with serving(folder, FOLDER="/elsewhere") as served:
        found = wait_until(lambda: complete(served), 180)
        made = {kind: served.post(f"{kind}/filter") for kind in ("deployments", "automations")}

        run = served.post(f"deployments/{found['by-hand']['id']}/create_flow_run")
        wait_until((folder / "ran.txt").exists, 180)

    assert by_name(made["deployments"]).keys() == by_name(deployed["deployments"]).keys()
    for name, expected in by_name(deployed["deployments"]).items():
        assert by_name(made["deployments"])[name] == expected, name
    assert by_name(made["automations"]) == by_name(deployed["automations"])
    assert run["parameters"] == {"where": "at-hand"}
    assert (folder / "ran.txt").read_text() == f"{folder} at-hand"
    # Not only equal, but what the file says.
    assert [schedule["active"] for schedule in found["switched-off"]["schedules"]] == [False]
    assert found["paused"]["paused"] is True
    west, east = sorted(found["two-times"]["schedules"], key=lambda schedule: schedule["slug"], reverse=True)
    assert (west["schedule"]["timezone"], west["parameters"]) == ("America/New_York", {"publish": False})
    assert (east["schedule"]["timezone"], east["parameters"]) == ("Asia/Tokyo", {"where": "Tokyo"})


def complete(served: Operated) -> dict[str, Any]:
    """The six deployments, once all are there and a worker asks for work."""
    found = {item["name"]: item for item in served.post("deployments/filter")}
    workers = served.post("work_pools/other-machines/workers/filter") if len(found) == 6 else []
    return found if workers else {}


def by_name(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Deployments or automations without what every server makes anew."""
    return {item["name"]: comparable(item) for item in found}


def comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: comparable(inner) for key, inner in value.items() if key not in OF_A_SERVER}
    return [comparable(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("deployment", "key"),
    [
        ("pasued: true", "pasued"),
        ("schedules: [{cron: 0 2 * * *, timezone: UTC, activ: false}]", "schedules"),
        ("schedules: [{timezone: UTC}]", "schedules"),
        ("concurrency_limit: {limit: 1, strategy: CANCEL_NEW}", "concurrency_limit"),
        ("work_pool: {name: machines, variables: {}}", "work_pool"),
    ],
)
def test_a_key_that_prefect_would_pass_over_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deployment: str, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prefect.yaml").write_text(f"deployments:\n  - name: nightly\n    entrypoint: a.py:a\n    {deployment}\n")

    with pytest.raises(UserError, match=rf"^prefect.yaml: (?s:.*)nightly: {key}\b"):
        work_pools()


def test_runs_that_were_due_while_nothing_was_served_are_not_made_up_for(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", STAGE)
    (folder / "nasty.py").write_text(FLOWS)
    (folder / "prefect.yaml").write_text(OFTEN.format(paused="false"))
    waiting = {"state": {"type": {"any_": ["SCHEDULED"]}}}
    with serving(folder) as served:
        wait_until(lambda: served.post("flow_runs/count", flow_runs=waiting), 180)
        earlier = wait_until(lambda: workers(served), 180)  # it begins after the deployments are there
    time.sleep(11)
    (folder / "prefect.yaml").write_text(OFTEN.format(paused="true"))

    with serving(folder) as served:
        wait_until(lambda: workers(served) - earlier, 180)

        assert served.post("flow_runs/filter", flow_runs=waiting) == []


def workers(served: Operated) -> set[str]:
    return {worker["name"] for worker in served.post("work_pools/machines/workers/filter")}


def test_the_deployments_are_served_and_nobody_without_the_key_can_start_or_change_one(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", STAGE)
    shutil.copyfile(ROOT / "prefect.yaml", folder / "prefect.yaml")
    (folder / "flows").symlink_to(ROOT / "flows")
    with serving(folder, HF_TOKEN="a-secret-of-mine") as served:
        found = wait_until(lambda: three(served.post("deployments/filter")), 180)

        assert {item["name"] for item in found} == {"nightly", "on-demand", "sweep-cell"}
        assert not [item for item in found if {"source", "folder"} & set(item["parameters"])]
        stranger = httpx.post(f"{served.address}/deployments/{found[0]['id']}/create_flow_run", json={}, timeout=180)
        assert stranger.status_code == 401
        assert (folder / ".parrotflow/prefect/key").stat().st_mode & 0o077 == 0
        port = served.address.split(":")[2].partition("/")[0]
        server = int(
            subprocess.check_output(["pgrep", "-o", "-f", f"server start --host 127.0.0.1 --port {port}"], text=True)
        )
        assert b"a-secret-of-mine" not in Path(f"/proc/{server}/environ").read_bytes()


def three(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return found if len(found) == 3 else []
