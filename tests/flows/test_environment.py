import subprocess
import sys
from pathlib import Path

import pytest

from flows.environment import enter_project
from tests.flows.toy import make_toy


def test_a_command_works_from_a_folder_inside_the_project(tmp_path: Path) -> None:
    folder = make_toy(tmp_path / "toy")
    (folder / ".gitignore").unlink()
    (folder / "inside").mkdir()

    said = subprocess.check_output([sys.executable, "-m", "flows.cli", "why"], cwd=folder / "inside", text=True)

    assert "never run" in said
    assert list((folder / "inside").iterdir()) == []
    status = subprocess.check_output(["git", "status", "--short", "--untracked-files=all"], cwd=folder, text=True)
    assert ".parrotflow" not in status


def test_outside_a_project_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    enter_project()

    assert list(tmp_path.iterdir()) == []
