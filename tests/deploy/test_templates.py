"""The templates name things that exist, and hold no secret."""

import re
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes/train.yaml").read_text(encoding="utf-8")))


@pytest.mark.parametrize("script", sorted(path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*.s[hb]*")))
def test_every_script_is_valid_shell(script: str) -> None:
    subprocess.run(["bash", "-n", str(DEPLOY / script)], check=True)


def test_both_kinds_of_job_run_the_node_script_that_can_be_executed() -> None:
    job = kubernetes()[1]["spec"]["template"]["spec"]["containers"][0]

    assert 'exec deploy/node.sh "$SLURM_NODEID" "$RUN"' in (DEPLOY / "slurm/train.sbatch").read_text()
    assert 'exec deploy/node.sh "$JOB_COMPLETION_INDEX" "$JOB_UID"' in job["args"][0]
    assert (DEPLOY / "node.sh").stat().st_mode & 0o111


def test_the_log_of_the_batch_job_needs_no_folder_that_does_not_exist_yet() -> None:
    script = (DEPLOY / "slurm/train.sbatch").read_text()

    assert re.search(r"^#SBATCH --output=slurm-%j\.log$", script, re.MULTILINE)
    assert "/slurm-*.log" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_kubernetes_job_changes_lines_that_the_preset_has() -> None:
    service, job = kubernetes()
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    script = job["spec"]["template"]["spec"]["containers"][0]["args"][0]
    preset = (ROOT / "launch/multi_node.yaml").read_text(encoding="utf-8")

    for line in re.findall(r"s/\^(\w+):\.\*/", script):
        assert re.search(rf"^{line}:", preset, re.MULTILINE), line
    assert job["spec"]["completions"] == yaml.safe_load(preset)["num_machines"]


def test_a_token_comes_from_a_secret_only() -> None:
    env = {entry["name"]: entry for entry in kubernetes()[1]["spec"]["template"]["spec"]["containers"][0]["env"]}

    assert set(env["HF_TOKEN"]) == {"name", "valueFrom"}
    assert "secretKeyRef" in env["HF_TOKEN"]["valueFrom"]
    for path in DEPLOY.rglob("*.yaml"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not re.search(r"HF_TOKEN: *\"(?!\{\{ prefect\.blocks\.secret\.)", line), (path, line)


def test_containers_do_not_run_as_root() -> None:
    pod = kubernetes()[1]["spec"]["template"]["spec"]
    lines = (DEPLOY / "docker/Dockerfile").read_text().splitlines()

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert lines.index("USER parrotflow") < min(i for i, line in enumerate(lines) if line.startswith("COPY"))


def test_the_image_has_what_isolates_generated_code() -> None:
    packages = (DEPLOY / "docker/Dockerfile").read_text().partition("apt-get install")[2].partition("&&")[0]

    assert "bubblewrap" in packages.split()


def test_the_image_takes_files_by_name_and_all_that_a_run_reads() -> None:
    first, *rules = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")
    ]
    taken = {line.removeprefix("!") for line in rules if line.startswith("!")}

    assert first == "*"
    assert not {".git", ".venv", ".dvc", ".env", "data", "model", "reports", "corpus", "*"} & taken
    assert all((ROOT / name).exists() for name in taken)
    dvc = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].values()
    outs = {next(iter(out)) if isinstance(out, dict) else out for stage in dvc for out in stage.get("outs", ())}
    deps = {dep for stage in dvc for dep in stage["deps"]}
    read = {dep for dep in deps if not dep.startswith(("data/", "reports/", "model", "code/"))} - outs - {"corpus"}
    assert {dep.split("/")[0] for dep in read} <= taken


def test_prefect_takes_the_notification_once_it_has_a_block() -> None:
    from prefect.events.schemas.automations import AutomationCore

    text, block = (DEPLOY / "notifications.yaml").read_text(encoding="utf-8"), uuid4()
    automation = AutomationCore.model_validate(yaml.safe_load(text.replace("YOUR-BLOCK", str(block))))

    (action,) = automation.actions
    assert action.model_dump()["block_document_id"] == block
    states = {name.rpartition(".")[2] for name in automation.trigger.model_dump()["expect"]}
    assert states == {"Failed", "Crashed", "Refused", "Paused"}
