"""The command line: the commands that stages bring along, and what they get."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import ui

ROOT = Path(__file__).parents[2]


def parrotflow(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_help_lists_the_commands_of_the_stages_with_their_first_line() -> None:
    top, data = parrotflow("--help").stdout, parrotflow("data", "--help").stdout

    assert "sample" in top
    assert "continues" in top
    assert "trace" in data


def test_the_version_is_that_of_pyproject() -> None:
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

    assert version
    assert parrotflow("--version").stdout.strip() == version[1]


def test_ctrl_c_during_the_imports_ends_a_command_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "cyclopts.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    command = ["env", "--default-signal=INT", sys.executable, "-m", "flows.cli", "--help"]

    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_options_are_passed_on_and_the_exit_code_comes_back() -> None:
    done = parrotflow("data", "trace", "--step", "x")

    assert done.returncode == 2
    assert "--step: invalid int value: 'x'" in done.stderr


def test_the_pages_have_a_folder_for_their_database_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_SERVER_UI_API_URL", "")  # set by the command, for its own process
    started = list[list[str]]()
    monkeypatch.setattr(os, "execv", lambda program, command: started.append(command))

    ui(port=4311)

    assert (tmp_path / ".parrotflow").is_dir()
    assert started[0][-2:] == ["--port", "4311"]
    assert "--no-prompt" in started[0]
