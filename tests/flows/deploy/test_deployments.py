"""The deployments of the project name things that exist."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.scheduled import scheduled

ROOT = Path(__file__).parents[3]
FILES = ["prefect.yaml", *(f"deploy/{pool}/prefect.yaml" for pool in ("docker", "kubernetes", "slurm"))]


def deployments(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))["deployments"]
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_deployment_starts_the_flow_with_parameters_that_it_has(name: str) -> None:
    known = set(inspect.signature(scheduled.fn).parameters)

    for deployment in deployments(name):
        assert deployment["entrypoint"] == "flows/scheduled.py:scheduled"
        assert set(deployment["parameters"]) <= known
        assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}


def test_one_deployment_is_nightly_and_the_others_are_started_by_a_person() -> None:
    nightly, on_demand, sweep = deployments("prefect.yaml")

    assert nightly["schedules"] == [{"cron": "0 2 * * *", "timezone": "UTC", "active": True}]
    assert "schedules" not in on_demand | sweep
