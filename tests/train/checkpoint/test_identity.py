"""What decides whether a training continues: the code that its weights depend on, and no other."""

import shutil
from pathlib import Path

import pytest

from stages.runtime.code import CodeFiles, computing
from stages.runtime.stage_code import REQUIREMENTS_LOCK, code_of
from tests.small_project import ROOT

COMPUTES = set(computing(CodeFiles(ROOT).closure_of("stages.train.compute.")))
ALL = CodeFiles(ROOT).closure_of("stages.train")


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the stages."""
    folder = tmp_path_factory.mktemp("code")
    shutil.copytree(ROOT / "stages", folder / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / REQUIREMENTS_LOCK, folder / REQUIREMENTS_LOCK)
    return folder


@pytest.mark.parametrize("file", ALL)
def test_only_a_change_of_what_computes_starts_a_training_afresh(code: Path, file: str) -> None:
    before, text = code_of("stages.train", code), (code / file).read_text(encoding="utf-8")
    (code / file).write_text(f"{text}\nprint('another message')\n", encoding="utf-8")
    after = code_of("stages.train", code)
    (code / file).write_text(text, encoding="utf-8")

    assert before.changes_to(after) == [f"{file} modified"], "DVC runs the stage again"
    assert (after.computing_sha256 != before.computing_sha256) is (file in COMPUTES)
