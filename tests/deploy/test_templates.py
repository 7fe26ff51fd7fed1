"""The templates name things that exist."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prefect.events.schemas.automations import AutomationCore

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


@pytest.mark.parametrize("script", sorted(path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*.s[hb]*")))
def test_every_script_is_valid_shell(script: str) -> None:
    subprocess.run(["bash", "-n", str(DEPLOY / script)], check=True)


def test_the_batch_job_runs_the_node_script_that_can_be_executed() -> None:
    assert 'exec deploy/node.sh "$SLURM_NODEID" "$RUN"' in (DEPLOY / "slurm/train.sbatch").read_text()
    assert (DEPLOY / "node.sh").stat().st_mode & 0o111


def test_the_log_of_the_batch_job_needs_no_folder_that_does_not_exist_yet() -> None:
    script = (DEPLOY / "slurm/train.sbatch").read_text()

    assert re.search(r"^#SBATCH --output=slurm-%j\.log$", script, re.MULTILINE)
    assert "/slurm-*.log" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_automations_are_such_as_prefect_takes() -> None:
    (entry,) = yaml.safe_load((DEPLOY / "automations.yaml").read_text())["automations"]

    assert AutomationCore.model_validate(entry).actions
