"""A stage whose inputs are edited while it runs fails, and DVC records nothing; every failure is one clear message."""

import errno
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from stages.runtime.errors import STAGES_TO_DO, InputsChangedError, RefusedError, UnavailableError, UserError
from stages.runtime.stage import Inputs, inputs_of, run_stage
from stages.runtime.stage_code import stage_codes
from tests.small_project import make_repository

ROOT = Path(__file__).parents[2]

DVC_YAML = """\
stages:
  code:
    cmd: python -m stages.code
    deps: [stages, requirements.lock]
    outs: [data/code]
  toy:
    cmd: python -m stages.toy
    deps: [source.txt, folder, data/code/toy.json]
    params: [toy]
    outs: [out.txt]
  other:
    cmd: cp source.txt other.txt
    deps: [source.txt]
    outs: [other.txt]
"""

MAIN = """\
from pathlib import Path

import stages.toy.used
from stages.runtime.stage import run_stage


def main():
    if Path("edit").exists():
        Path("edit").unlink()
        Path("params.yaml").write_text(Path("params.yaml").read_text().replace("rate: 1", "rate: 2"))
    Path("out.txt").write_text("result")


run_stage(main)
"""


PARAMS = """\
from stages.runtime.section import Section


class OtherParams(Section):
    rate: int

    def check(self, others):
        if self.rate > others["toy"]["rate"]:
            yield f"other.rate: more than toy.rate = {others['toy']['rate']}"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a project of one stage, which edits a parameter while it runs if there is a file `edit`."""
    (tmp_path / "stages/toy").mkdir(parents=True)
    compiled = shutil.ignore_patterns("__pycache__")
    for name in ("stages/code", "stages/runtime"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=compiled)
    (tmp_path / "stages/toy/__main__.py").write_text(MAIN)
    (tmp_path / "stages/toy/used.py").write_text("X = 1\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/part.txt").write_text("1")
    (tmp_path / "source.txt").write_text("1")
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    (tmp_path / "params.yaml").write_text("toy: {rate: 1, deep: {name: a}}\nother: 1\n")
    (tmp_path / ".dvcignore").write_text("__pycache__\n")
    (tmp_path / "requirements.lock").write_text("")
    monkeypatch.chdir(tmp_path)
    record_code()
    time.sleep(0.05)  # a later edit has another time
    return tmp_path


def record_code() -> None:
    """What the stage `code` does."""
    Path("data/code").mkdir(parents=True, exist_ok=True)
    for path, code in stage_codes().items():
        path.write_text(code.text)


def inputs() -> Inputs:
    """What the stage reads, as it is now."""
    found = inputs_of("stages.toy")
    assert found is not None
    return found


def replace(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def edit_and_take_back(code: Path) -> None:
    before = code.read_text()
    code.write_text("X = 2\n")
    code.write_text(before)


CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda p: replace(p / "params.yaml", "rate: 1", "rate: 2"), "toy.rate 1 → 2"),
    (lambda p: replace(p / "params.yaml", "name: a", "name: b"), "toy.deep.name a → b"),
    (lambda p: replace(p / "params.yaml", "name: a", "name: null"), "toy.deep.name a → null"),
    (lambda p: (p / "stages/toy/used.py").write_text("X = 2\n"), "stages/toy/used.py"),
    (lambda p: edit_and_take_back(p / "stages/toy/used.py"), "stages/toy/used.py"),  # it may have been loaded meanwhile
    (lambda p: (p / "source.txt").write_text("2"), "source.txt"),
    (lambda p: (p / "source.txt").unlink(), "source.txt (gone)"),
    (lambda p: (p / "folder/part.txt").write_text("2"), "folder/part.txt"),
    (lambda p: (p / "folder/more.txt").write_text("2"), "folder/more.txt (new)"),
]


@pytest.mark.parametrize(("change", "named"), CHANGES)
def test_an_input_edited_while_the_stage_runs_is_named_and_the_stage_fails(
    project: Path, change: Callable[[Path], object], named: str
) -> None:
    before = inputs()
    change(project)

    with pytest.raises(InputsChangedError, match=f"^toy: inputs changed while it ran: {re.escape(named)};") as caught:
        before.require_unchanged()
    assert str(caught.value).endswith(", or restore the old ones first to keep what is computed")


@pytest.mark.parametrize(
    "change",
    [
        lambda p: replace(p / "params.yaml", "other: 1", "other: 2"),
        lambda p: (p / "requirements.lock").write_text("numpy==1.0"),  # what it ran with is on record
        lambda p: (p / "not-listed.txt").write_text("1"),
    ],
)
def test_other_edits_leave_the_stage_alone(project: Path, change: Callable[[Path], object]) -> None:
    before = inputs()
    change(project)

    before.require_unchanged()


@pytest.mark.parametrize(
    "command",
    [
        "python3 -m stages.toy",
        ".venv/bin/python -u -m stages.toy --fast",
        "[mkdir -p made, python -m stages.toy]",
        '"python -m stages.toy.more && python -m stages.toy"',
    ],
)
def test_a_stage_is_found_by_its_module_however_its_command_calls_python(project: Path, command: str) -> None:
    replace(project / "dvc.yaml", "cmd: python -m stages.toy", f"cmd: {command}")

    assert inputs().stage == "toy"


def test_dvc_records_nothing_and_the_next_run_computes_again(project: Path) -> None:
    def repro() -> "subprocess.CompletedProcess[str]":
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        command = [sys.executable, "-m", "dvc", "repro", "toy"]
        variables = os.environ | {"PYTHONPATH": str(project), "PATH": path}
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

    make_repository(project)
    Path("edit").touch()
    refused = repro()
    assert refused.returncode != 0
    assert "error: toy: inputs changed while it ran: toy.rate 1 → 2;" in refused.stdout + refused.stderr
    assert "toy" not in yaml.safe_load((project / "dvc.lock").read_text())["stages"]

    assert repro().returncode == 0
    recorded = yaml.safe_load((project / "dvc.lock").read_text())["stages"]["toy"]["params"]["params.yaml"]
    assert recorded["toy"]["rate"] == 2


def refused(message: str) -> None:
    with pytest.raises(UserError, match=message):
        inputs().require_recorded_code()


def test_code_that_is_not_as_recorded_stops_the_stage_before_it_computes(project: Path) -> None:
    (project / "stages/toy/used.py").write_text("import stages.toy.hidden\n")
    (project / "stages/toy/hidden.py").write_text("X = 1\n")

    refused(
        r"^toy: data/code/toy.json does not match the current code \(stages/toy/hidden.py is new, "
        r"stages/toy/used.py modified\): run `dvc repro`, which updates it first$"
    )
    shutil.rmtree(project / "data/code")
    refused(r"^toy: there is no data/code/toy.json: run `dvc repro`, which writes it first$")


def test_a_locked_version_that_is_not_recorded_or_not_installed_stops_it_too(project: Path) -> None:
    replace(project / "stages/toy/used.py", "X = 1", "import numpy as X")
    (project / "requirements.lock").write_text("numpy==1.0\npandas==1.0\n")
    record_code()
    refused(r"^numpy: requirements.lock says 1.0, found ")

    (project / "requirements.lock").write_text(f"numpy=={version('numpy')}\npandas==1.0\n")
    refused(rf"\(numpy 1.0 → {version('numpy')}\): run `dvc repro`")
    record_code()
    inputs().require_recorded_code()


def test_a_stage_that_does_not_depend_on_its_code_is_stopped(project: Path) -> None:
    replace(project / "dvc.yaml", ", data/code/toy.json]", "]")

    refused("^toy: dvc.yaml does not list data/code/toy.json among its deps")


def test_under_plain_dvc_a_stage_refuses_what_a_later_one_would_and_within_a_run_it_does_not_ask_again(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "stages/other").mkdir()
    (project / "stages/other/params.py").write_text(PARAMS)
    replace(project / "params.yaml", "other: 1", "other: {rate: 2}")
    command = [sys.executable, "-m", "stages.toy"]
    monkeypatch.delenv(STAGES_TO_DO, raising=False)

    refused = subprocess.run(command, check=False, capture_output=True, text=True)
    monkeypatch.setenv(STAGES_TO_DO, "toy")
    subprocess.run(command, check=True)

    assert (refused.returncode, refused.stderr) == (2, "error: params.yaml: other.rate: more than toy.rate = 1\n")


def failing(error: BaseException, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """The exit code and the message of a stage that raises an error."""

    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as left:
        run_stage(main)
    return left.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "code"), [(UserError, 2), (InputsChangedError, 65), (UnavailableError, 69), (RefusedError, 77)]
)
def test_a_users_mistake_is_its_message_and_the_exit_code_of_its_kind(
    capsys: pytest.CaptureFixture[str], kind: type[UserError], code: int
) -> None:
    said = "train.steps = -1: must be positive"

    assert failing(kind(said), capsys) == (code, f"error: {said}\n")


def test_a_name_in_an_error_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _, said = failing(UserError("a\x1b]0;title\x07\r.py: naïve →\nsecond line"), capsys)

    assert said == "error: a\\x1b]0;title\\x07\\r.py: naïve →\nsecond line\n"


@pytest.mark.parametrize(
    ("numbers", "code", "remedy"),
    [
        ((errno.ENOSPC, errno.EDQUOT), 28, "free some space"),
        ((errno.EACCES, errno.EPERM, errno.EROFS), 2, "correct permissions and owner (`ls -ld`)"),
        ((errno.EFBIG, errno.EIO), 2, "look at the disk and at the limits of this shell (`ulimit -a`)"),
    ],
)
def test_what_the_system_refuses_is_named_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    numbers: tuple[int, ...],
    code: int,
    remedy: str,
) -> None:
    for number in numbers:
        monkeypatch.delenv("DVC_STAGE", raising=False)  # of a command without results
        said = f"error: data/tokens/b0.bin: {os.strerror(number)}: {remedy}, and run the same command again\n"
        assert failing(OSError(number, os.strerror(number), "data/tokens/b0.bin"), capsys) == (code, said)
        monkeypatch.setenv("DVC_STAGE", "tokenize")
        assert failing(OSError(number, os.strerror(number), "data/tokens/b0.bin"), capsys) == (
            code,
            f"error: data/tokens/b0.bin: {os.strerror(number)}; `dvc checkout` restores the last result: "
            f"{remedy}, and run the same command again\n",
        )


def test_a_failed_write_is_recognized_although_the_system_names_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        Path("/dev/full").write_bytes(b"x")

    with pytest.raises(SystemExit) as left:
        run_stage(main)

    assert left.value.code == 28
    assert capsys.readouterr().err.startswith("error: No space left on device: free some space")


def test_a_fault_of_the_program_keeps_its_traceback() -> None:
    def main() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_stage(main)


def test_ctrl_c_leaves_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(KeyboardInterrupt(), capsys) == (
        130,
        "error: interrupted; run the same command to continue\n",
    )
