"""A hook of git runs a command of ours: nothing that git tells the hook of its repository reaches our git commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stages

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", ["stages.runtime.errors", "flows.cli", "flows.scheduled", "flows.sweep.pool"])
def test_every_entry_asks_git_about_this_project_also_in_a_hook_of_another_repository(
    tmp_path: Path, package: str
) -> None:
    subprocess.run(["git", "init", "-q", tmp_path / "other"], check=True)
    program = f"import {package}, subprocess; print(subprocess.check_output(['git', 'ls-files', '-s', 'dvc.yaml']))"
    hook = {"GIT_DIR": str(tmp_path / "other/.git"), "GIT_INDEX_FILE": str(tmp_path / "other/.git/index")}

    listed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=os.environ | hook, check=True, capture_output=True, text=True
    )

    assert "dvc.yaml" in listed.stdout


def test_every_variable_by_which_git_names_a_repository_is_removed() -> None:
    listed = subprocess.run(["git", "rev-parse", "--local-env-vars"], check=True, capture_output=True, text=True)

    kept = {"GIT_CONFIG_COUNT", "GIT_INTERNAL_SUPER_PREFIX"}  # a container's own settings; within git only
    assert set(listed.stdout.split()) - kept <= set(stages.OF_A_REPOSITORY)
