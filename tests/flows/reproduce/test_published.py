"""The real pipeline, published by its own stage: a segment of its training, from the published record alone."""

import shutil
from pathlib import Path

import pytest

from flows.reproduce import ReproduceOptions
from flows.reproduce.reproduction import reproduce


def test_a_segment_of_a_published_training_is_bit_identical(
    up_to_date: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    shutil.copytree(up_to_date, project, symlinks=True)
    monkeypatch.chdir(project)

    assert reproduce(ReproduceOptions("published/tiny", segment="3-6", yes=True, folder=tmp_path / "work")) == 0

    said = capfd.readouterr().out
    assert "restored: collect, clean, tokenizer, tokenize" in said
    assert "checkpoint of step 6: " in said
    assert "\nequal: steps 4 to 6, computed again, lead to the recorded state, bit for bit (" in said
