"""The real pipeline, published by its own stage: a segment of its training, from the published record alone."""

import shutil
from pathlib import Path

import pytest

from flows.reproduce.reproduction import reproduce
from flows.reproduce.request import Request


def test_a_segment_of_a_published_training_is_bit_identical(
    up_to_date: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    shutil.copytree(up_to_date, project, symlinks=True)
    monkeypatch.chdir(project)

    assert reproduce(Request("published/tiny", segment="2", folder=tmp_path / "work", report=tmp_path / "r.html")) == 0

    said = capfd.readouterr().out
    assert "restored: collect, clean, tokenizer, tokenize" in said
    assert "checkpoint of step 6: " in said
    assert "\nbit-identical: steps 3 to 6 of the training" in said
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<th>weights</th>" in page
    assert str(tmp_path) not in page.split("<h2>Commands</h2>")[0]
