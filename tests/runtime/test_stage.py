"""A stage whose inputs are edited while it runs fails, and DVC records nothing; every failure is one clear message."""

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from stages.runtime.entry import InputsChangedError, RefusedError, UnavailableError, UserError
from stages.runtime.stage import run_stage
from stages.runtime.stage_code import stage_codes
from tests.small_project import make_repository
from tests.waiting import wait_until

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
import time
from pathlib import Path

import stages.runtime.stage as stage
import stages.toy.used


def main():
    Path("began").touch()
    while Path("wait").exists():
        time.sleep(0.01)
    Path("out.txt").write_text("result")


stage.run_stage(main)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one stage that computes as long as the file `wait` is there."""
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
    record_code(tmp_path)
    (tmp_path / "wait").touch()
    time.sleep(0.05)  # no file is newer than the process that reads it
    return tmp_path


def record_code(project: Path) -> None:
    """What the stage `code` does."""
    (project / "data/code").mkdir(parents=True, exist_ok=True)
    for path, code in stage_codes(project).items():
        (project / path).write_text(code.text)


def run(project: Path, change: Callable[[], object], *command: str) -> tuple[int, str]:
    """Run the stage, make a change once it computes, let it end; its exit code and what it said."""
    process = subprocess.Popen(
        [sys.executable, "-m", *(command or ["stages.toy"])],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: (project / "began").exists() or process.poll() is not None)
    change()
    (project / "wait").unlink(missing_ok=True)
    said, _ = process.communicate()
    return process.returncode, said


def replace(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda p: replace(p / "params.yaml", "rate: 1", "rate: 2"), "toy.rate 1 → 2"),
    (lambda p: replace(p / "params.yaml", "name: a", "name: b"), "toy.deep.name a → b"),
    (lambda p: (p / "stages/toy/used.py").write_text("X = 2\n"), "stages/toy/used.py"),
    (lambda p: (p / "source.txt").write_text("2"), "source.txt"),
    (lambda p: (p / "source.txt").unlink(), "source.txt (gone)"),
    (lambda p: (p / "folder/part.txt").write_text("2"), "folder/part.txt"),
    (lambda p: (p / "folder/more.txt").write_text("2"), "folder/more.txt (new)"),
]


@pytest.mark.parametrize(("change", "named"), CHANGES, ids=[named for _, named in CHANGES])
def test_an_input_edited_while_the_stage_runs_is_named_and_the_stage_fails(
    project: Path, change: Callable[[Path], object], named: str
) -> None:
    code, said = run(project, lambda: change(project))

    assert code == 65
    assert said.startswith(f"error: toy: inputs changed while it ran: {named};")
    assert said.count("\n") == 1


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

    code, said = run(project, lambda: (project / "source.txt").write_text("2"))

    assert (code, said[:47]) == (65, "error: toy: inputs changed while it ran: source")


def test_code_that_was_edited_and_put_back_while_the_stage_ran_may_have_been_loaded(project: Path) -> None:
    def edit_and_take_back() -> None:
        code = project / "stages/toy/used.py"
        before = code.read_text()
        code.write_text("X = 2\n")
        code.write_text(before)

    code, said = run(project, edit_and_take_back)

    assert code == 65
    assert "inputs changed while it ran: stages/toy/used.py" in said


@pytest.mark.parametrize(
    "change",
    [
        lambda p: None,
        lambda p: replace(p / "params.yaml", "other: 1", "other: 2"),
        lambda p: (p / "requirements.lock").write_text("numpy==1.0"),  # what it ran with is on record
        lambda p: (p / "source.txt").write_text("1"),  # saved again as it was
        lambda p: (p / "not-listed.txt").write_text("1"),
    ],
)
def test_other_edits_leave_the_stage_alone(project: Path, change: Callable[[Path], object]) -> None:
    assert run(project, lambda: change(project)) == (0, "")


def test_dvc_records_nothing_and_the_next_run_computes_again(project: Path) -> None:
    make_repository(project)

    def edit() -> None:
        replace(project / "params.yaml", "rate: 1", "rate: 2")

    code, said = run(project, edit, "dvc", "repro", "toy")
    assert code != 0
    assert "toy.rate 1 → 2" in said
    assert "toy" not in yaml.safe_load((project / "dvc.lock").read_text())["stages"]

    code, _ = run(project, lambda: None, "dvc", "repro", "toy")
    assert code == 0
    recorded = yaml.safe_load((project / "dvc.lock").read_text())["stages"]["toy"]["params"]["params.yaml"]
    assert recorded["toy"]["rate"] == 2


def started(project: Path) -> tuple[int, str]:
    """Run the stage alone, without a change; its exit code and what it said."""
    return run(project, lambda: None)


def test_code_that_is_not_as_recorded_stops_the_stage_before_it_computes(project: Path) -> None:
    (project / "stages/toy/used.py").write_text("import stages.toy.hidden\n")
    (project / "stages/toy/hidden.py").write_text("X = 1\n")
    time.sleep(0.05)

    assert started(project) == (
        2,
        "error: toy: data/code/toy.json does not have the code as it is now (stages/toy/hidden.py is new, "
        "stages/toy/used.py modified): run `dvc repro`, which brings it up to date first\n",
    )
    assert not (project / "out.txt").exists()
    shutil.rmtree(project / "data/code")
    assert started(project) == (
        2,
        "error: toy: there is no data/code/toy.json: run `dvc repro`, which writes it first\n",
    )


def test_a_locked_version_that_is_not_recorded_or_not_installed_stops_it_too(project: Path) -> None:
    replace(project / "stages/toy/used.py", "X = 1", "import numpy as X")
    (project / "requirements.lock").write_text("numpy==1.0\npandas==1.0\n")
    record_code(project)
    time.sleep(0.05)
    code, said = started(project)
    assert code == 2
    assert said.startswith("error: numpy: requirements.lock says 1.0, found ")

    (project / "requirements.lock").write_text(f"numpy=={version('numpy')}\npandas==1.0\n")
    assert f"(numpy 1.0 → {version('numpy')}): run `dvc repro`" in started(project)[1]
    record_code(project)
    assert started(project) == (0, "")


def test_a_stage_that_does_not_depend_on_its_code_is_stopped(project: Path) -> None:
    replace(project / "dvc.yaml", ", data/code/toy.json]", "]")

    code, said = started(project)

    assert code == 2
    assert said.startswith("error: toy: dvc.yaml does not list data/code/toy.json among its deps")


def test_a_file_that_a_parameter_names_has_to_be_listed(project: Path) -> None:
    told = "    from stages.runtime.stage import require_listed\n" + "".join(
        f'    require_listed("toy.sets", Path("{name}"))\n' for name in ("folder/part.txt", "own.txt")
    )
    replace(project / "stages/toy/__main__.py", "def main():\n", f"def main():\n{told}")
    record_code(project)
    (project / "wait").unlink()

    assert started(project) == (
        2,
        "error: params.yaml: toy.sets: own.txt is not among the deps of toy in dvc.yaml, so a change would go "
        "unnoticed: add it there\n",
    )
    replace(
        project / "dvc.yaml", "deps: [source.txt, folder, data/code", "deps: [source.txt, folder, own.txt, data/code"
    )
    assert started(project) == (0, "")


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
    ("number", "code", "message"),
    [
        (
            errno.ENOSPC,
            28,
            "no space left on the disk while writing data/tokens/b0.bin; `dvc checkout` restores the last result: "
            "free some space and run the same command again",
        ),
        *(
            (
                number,
                2,
                f"data/tokens/b0.bin: {os.strerror(number)}; `dvc checkout` restores the last result: "
                "correct its permissions or its owner (`ls -ld`), then run the same command again",
            )
            for number in (errno.EACCES, errno.EPERM, errno.EROFS)
        ),
        *(
            (
                number,
                2,
                f"{os.strerror(number)} while writing data/tokens/b0.bin; `dvc checkout` restores the last result: "
                "look at the disk and at the limits of this shell (`ulimit -a`), then run the same command again",
            )
            for number in (errno.EFBIG, errno.EIO)
        ),
    ],
)
def test_what_the_system_refuses_is_named_with_what_to_do(
    capsys: pytest.CaptureFixture[str], number: int, code: int, message: str
) -> None:
    error = OSError(number, os.strerror(number), "data/tokens/b0.bin")

    assert failing(error, capsys) == (code, f"error: {message}\n")


def test_a_failed_write_is_recognised_although_the_system_names_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run_stage(lambda: Path("/dev/full").write_bytes(b"x") and None)

    assert left.value.code == 28
    assert capsys.readouterr().err.startswith("error: no space left on the disk; `dvc checkout` restores")


def test_a_fault_of_the_program_keeps_its_traceback() -> None:
    def main() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_stage(main)


def test_ctrl_c_leaves_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(KeyboardInterrupt(), capsys) == (
        130,
        "error: interrupted; the same command starts where this left off\n",
    )
