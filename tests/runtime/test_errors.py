import os
import subprocess
import sys
from pathlib import Path

import pytest

from stages.runtime.errors import UserError, private_state_dir, whole_number
from tests.flows.toy import make_toy, repro
from tests.small_project import ROOT


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
from stages.runtime.stage import run_stage

run_stage(lambda: Path("one.txt").touch())
"""


@pytest.mark.parametrize(
    ("begin", "before"), [(["dvc", "repro"], None), (["one.py"], 0o777), (["-m", "flows.cli", "why"], None)]
)
def test_the_state_folder_is_closed_to_other_users_whichever_command_makes_it(
    tmp_path: Path, begin: list[str], before: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_toy(tmp_path / "toy", STAGE)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (project / "one.py").write_text(PROGRAM)
    if before is not None:
        (project / ".parrotflow").mkdir()
        (project / ".parrotflow").chmod(before)
    umask = os.umask(0)
    try:
        if begin == ["dvc", "repro"]:
            repro(project)
        else:
            subprocess.run([sys.executable, *begin], cwd=project, check=True)
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


def test_a_variable_that_is_unset_or_empty_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBER", raising=False)
    assert whole_number("NUMBER") is None
    monkeypatch.setenv("NUMBER", "")
    assert whole_number("NUMBER") is None
    monkeypatch.setenv("NUMBER", "3")
    assert whole_number("NUMBER") == 3


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "\u00b2"])
def test_anything_but_a_whole_number_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBER", value)

    with pytest.raises(UserError, match=f"NUMBER={value}: expected a whole number, 1 or more"):
        whole_number("NUMBER")
