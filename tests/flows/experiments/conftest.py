"""Every test of experiments begins in an empty folder."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
