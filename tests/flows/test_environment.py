import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs._build.reference import OF_THE_PROGRAM
from flows.environment import SET_BY_STAGES, VARIABLES, enter_project, name_the_user
from stages.evaluate.harness import scoring
from stages.evaluate.likelihood import score
from stages.runtime.errors import UserError
from stages.runtime.stage_code import stage_codes
from tests.flows.toy import make_toy


def test_a_command_works_from_a_folder_inside_the_project(tmp_path: Path) -> None:
    folder = make_toy(tmp_path / "toy")
    (folder / ".gitignore").unlink()
    (folder / "inside").mkdir()

    said = subprocess.check_output([sys.executable, "-m", "flows.cli", "why"], cwd=folder / "inside", text=True)

    assert said.startswith("first run here: ")
    assert list((folder / "inside").iterdir()) == []
    status = subprocess.check_output(["git", "status", "--short", "--untracked-files=all"], cwd=folder, text=True)
    assert ".parrotflow" not in status


def test_outside_a_project_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    enter_project()

    assert list(tmp_path.iterdir()) == []


def test_a_user_id_without_a_name_gets_one_and_a_missing_home_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry() -> str:
        raise KeyError("getpwuid(): uid not found: 54321")

    monkeypatch.setenv("LOGNAME", "as before")
    monkeypatch.setattr("getpass.getuser", no_entry)
    name_the_user()
    assert os.environ["LOGNAME"] == f"user-{os.getuid()}"

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(UserError, match="HOME is not set"):
        name_the_user()


ROOT = Path(__file__).parents[2]
TABLE = ROOT / "flows/environment.py"


def test_each_variable_of_the_code_is_in_the_table_and_none_besides() -> None:
    sources = [path for package in ("flows", "stages") for path in (ROOT / package).rglob("*.py") if path != TABLE]
    found = {name for path in sources for name in re.findall(r'"(PARROTFLOW_[A-Z_]*[A-Z])"', path.read_text())}

    assert found == VARIABLES | SET_BY_STAGES
    assert OF_THE_PROGRAM.keys() == VARIABLES


def test_the_defaults_that_the_table_shows_are_those_of_the_code() -> None:
    shown = {name: default for name, (default, _) in OF_THE_PROGRAM.items()}

    assert shown[score.WINDOWS_VARIABLE] == f"{score.GPU_TOKENS:,} tokens on a GPU, {score.CPU_CHUNK_TOKENS:,} on a CPU"
    assert shown[scoring.REQUESTS_VARIABLE] == "{cuda} on a GPU, {cpu} on a CPU".format(**scoring.DEFAULT_BATCH)


def test_training_alone_is_launched_as_the_site_says() -> None:
    launched = {path for path, code in stage_codes(ROOT).items() if "stages/runtime/launch.py" in code.files}
    assert {Path(path).stem for path in launched} == {"train"}
    assert OF_THE_PROGRAM["PARROTFLOW_LAUNCH"][1].startswith("how training starts: ")
