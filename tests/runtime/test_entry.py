import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stages.runtime.entry import UnavailableError, UserError, private_state_dir, run_stage, whole_number
from tests.flows.toy import make_toy, repro
from tests.small_project import ROOT


def test_a_users_mistake_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise UserError("params.yaml: train.steps = -1: must be positive")

    with pytest.raises(SystemExit) as left:
        run_stage(main)

    assert left.value.code == 2
    assert capsys.readouterr().err == "error: params.yaml: train.steps = -1: must be positive\n"


def test_a_name_in_an_error_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise UserError("a\x1b]0;title\x07\r.py: naïve →\nsecond line")

    with pytest.raises(SystemExit):
        run_stage(main)

    assert capsys.readouterr().err == "error: a\\x1b]0;title\\x07\\r.py: naïve →\nsecond line\n"


def test_a_service_that_does_not_answer_has_an_exit_code_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise UnavailableError("s3://bucket: does not answer")

    with pytest.raises(SystemExit) as left:
        run_stage(main)

    assert left.value.code == 69
    assert capsys.readouterr().err == "error: s3://bucket: does not answer\n"


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
    def main() -> None:
        raise OSError(number, os.strerror(number), "data/tokens/b0.bin")

    with pytest.raises(SystemExit) as left:
        run_stage(main)

    assert left.value.code == code
    assert capsys.readouterr().err == f"error: {message}\n"


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
    def main() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as left:
        run_stage(main)

    assert left.value.code == 130
    assert "starts where this left off" in capsys.readouterr().err


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


STAGE = """\
stages:
  one:
    cmd: python one.py
    outs: [one.txt]
"""

PROGRAM = """\
from pathlib import Path
from stages.runtime.entry import run_stage

run_stage(lambda: Path("one.txt").touch())
"""


@pytest.mark.parametrize(
    ("begin", "before"),
    [("dvc repro", None), ("a worker", None), ("a worker", 0o777), ("parrotflow why", None), ("a flow", None)],
)
def test_whatever_starts_first_closes_the_folder_of_states_to_other_users(
    tmp_path: Path, begin: str, before: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_toy(tmp_path / "toy", STAGE)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (project / "one.py").write_text(PROGRAM)
    if before is not None:
        (project / ".parrotflow").mkdir()
        (project / ".parrotflow").chmod(before)
    umask = os.umask(0)
    try:
        match begin:
            case "dvc repro":
                repro(project)
            case "a worker":
                subprocess.run([sys.executable, "one.py"], cwd=project, check=True)
            case "parrotflow why":
                subprocess.run([sys.executable, "-m", "flows.cli", "why"], cwd=project, check=True)
            case _:
                subprocess.run([sys.executable, "-m", "flows.pipeline"], cwd=project, check=True)
    finally:
        os.umask(umask)

    assert mode(project / ".parrotflow") == 0o700


def test_the_target_of_a_link_is_left_as_it_is_and_dvcs_part_of_it_is_closed(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    (tmp_path / ".parrotflow").symlink_to(tmp_path / "shared")

    private_state_dir(tmp_path)

    assert mode(tmp_path / "shared") == 0o777
    assert mode(tmp_path / "shared/dvc") == 0o700


def test_a_variable_that_is_unset_or_empty_leaves_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBER", raising=False)
    assert whole_number("NUMBER", 7) == 7
    monkeypatch.setenv("NUMBER", "")
    assert whole_number("NUMBER", None) is None
    monkeypatch.setenv("NUMBER", "3")
    assert whole_number("NUMBER", 7) == 3


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "\u00b2"])
def test_anything_but_a_whole_number_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBER", value)

    with pytest.raises(UserError, match=f"NUMBER={value}: expected a whole number, 1 or more"):
        whole_number("NUMBER", 7)
