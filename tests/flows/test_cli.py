"""The command line: its commands, and how it refuses what it does not know."""

import inspect
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from flows.cli import COMMANDS, app
from flows.commands.serve import ui

ROOT = Path(__file__).parents[2]


def parrotflow(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_help_lists_the_commands_under_headings_without_importing_what_is_slow() -> None:
    command = "import sys; from flows.cli import app; app(['--help'], result_action='return_value')"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{command}; assert not {{'torch', 'transformers', 'prefect', 'dvc'}} & {{*sys.modules}}",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    headings = re.findall(r"─ ([A-Z][\w ]+) ─", done.stdout)
    assert headings == ["Commands", "Start here", "Results", "Experiments", "Data", "Deployments"]
    assert re.findall(r"^│ ([a-z]+)  ", done.stdout, re.MULTILINE)[:5] == ["run", "why", "params", "doctor", "sample"]
    assert "Continue a prompt with the trained model, token by token." in done.stdout


def test_every_command_of_the_table_exists() -> None:
    for words in [words for commands in COMMANDS.values() for words in commands]:
        _, found, _ = app.parse_commands(words.split())
        assert found[-1].default_command is not None, words
        docstring = inspect.getdoc(found[-1].default_command) or ""
        assert found[-1].help, words
        assert docstring.startswith(found[-1].help), words


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("data trace --step x", 'Invalid value for --step: unable to convert "x" into int.'),
        ("published forget", "forget: no such command; see `parrotflow --help`"),
        ("rnu train", "rnu train: no such command; see `parrotflow --help`; did you mean `run`?"),
        ("verify", "verify: no such command; see `parrotflow --help`; did you mean `published verify`?"),
        ("sample def f", "f: one argument too many; put a text with spaces in quotes"),
        (
            "sweep",
            'Command "sweep" parameter NAME requires an argument. Experiments: '
            f"{', '.join(sorted(path.stem for path in (ROOT / 'experiments').glob('*.yaml')))}.",
        ),
    ],
)
def test_words_that_cannot_be_understood_are_refused_in_one_line(words: str, said: str) -> None:
    done = parrotflow(*words.split())

    assert (done.returncode, done.stderr) == (2, f"error: {said}\n")


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


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("params mo", "model=gpt2"),
        ("params train.opt", "train.optimizer.weight_decay="),
        ("run ev", "evaluate"),
        ("why ev", "evaluate"),
        ("sweep op", "optimizers"),
        ("table op", "optimizers"),
    ],
)
def test_the_shell_completes_groups_keys_stages_and_experiments(words: str, offered: str) -> None:
    done = parrotflow("__complete", *words.split())

    assert done.returncode == 0, done.stderr
    assert offered in done.stdout.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_script_for_the_shell_is_made_that_asks_for_them(shell: Literal["bash", "zsh"]) -> None:
    assert "__complete" in app.generate_completion(shell=shell)
