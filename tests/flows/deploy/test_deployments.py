"""The deployments that stand in the project name things that exist."""

import inspect
import re
import subprocess
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


def test_one_deployment_is_nightly_and_one_on_demand() -> None:
    nightly, on_demand = deployments("prefect.yaml")

    assert nightly["schedules"] == [{"cron": "0 2 * * *", "timezone": "UTC", "active": True}]
    assert "schedules" not in on_demand


def test_the_batch_script_is_valid_shell_and_uses_what_exists() -> None:
    script = ROOT / "deploy/slurm/train.sbatch"

    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text(encoding="utf-8")
    assert "dvc repro tokenize" in text
    assert set(re.findall(r"python -m (stages\.\w+)", text)) == {"stages.train"}


def test_the_kubernetes_job_is_valid_and_changes_lines_that_the_preset_has() -> None:
    service, job = yaml.safe_load_all((ROOT / "deploy/kubernetes/train.yaml").read_text(encoding="utf-8"))
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    script = job["spec"]["template"]["spec"]["containers"][0]["args"][0]
    preset = (ROOT / "launch/multi_node.yaml").read_text(encoding="utf-8")

    for line in re.findall(r"s/\^(\w+):\.\*/", script):
        assert re.search(rf"^{line}:", preset, re.MULTILINE), line
    assert job["spec"]["completions"] == yaml.safe_load(preset)["num_machines"]
