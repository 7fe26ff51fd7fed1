"""The deployments of the project name things that exist."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.scheduled import scheduled, sweep
from flows.sweep.flow_runs import DEPLOYMENT as CELL
from flows.sweep.flow_runs import FLOW
from flows.sweep_cell import sweep_cell

ROOT = Path(__file__).parents[3]
FILES = ["prefect.yaml", *(f"deploy/{pool}/prefect.yaml" for pool in ("docker", "kubernetes", "slurm"))]


def deployments(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))["deployments"]
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_deployment_starts_the_flow_with_parameters_that_it_has(name: str) -> None:
    flows = {f"flows/scheduled.py:{flow.fn.__name__}": flow for flow in (scheduled, sweep)}

    for deployment in deployments(name):
        if deployment["name"] == CELL:
            continue
        parameters = inspect.signature(flows[deployment["entrypoint"]].fn).parameters
        assert set(deployment["parameters"]) <= set(parameters)
        assert {name for name, one in parameters.items() if one.default is one.empty} <= set(deployment["parameters"])
        assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}


def test_one_deployment_is_nightly_and_the_others_are_started_by_a_person() -> None:
    nightly, on_demand, of_sweep, cell = deployments("prefect.yaml")

    assert nightly["schedules"] == [{"cron": "0 2 * * *", "timezone": "UTC", "active": True}]
    assert "schedules" not in on_demand | of_sweep | cell


@pytest.mark.parametrize("name", FILES)
def test_every_deployment_runs_in_the_folder_of_its_worker_not_in_that_of_the_deployer(name: str) -> None:
    file = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))

    assert [list(step) for step in file["pull"]] == [["prefect.deployments.steps.set_working_directory"]]
    assert not [deployment for deployment in file["deployments"] if "pull" in deployment]


def test_cells_of_sweeps_run_beside_each_other_in_the_folder_of_their_worker() -> None:
    *_, cell = deployments("prefect.yaml")
    path, _, name = cell["entrypoint"].partition(":")

    assert (cell["name"], sweep_cell.name, name) == (CELL, FLOW, sweep_cell.fn.__name__)
    assert (ROOT / path).samefile(inspect.getfile(sweep_cell.fn))
    assert "concurrency_limit" not in cell
    assert {one["work_pool"]["job_variables"]["working_dir"] for one in deployments("prefect.yaml")} == {"."}
