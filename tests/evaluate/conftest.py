import shutil
from pathlib import Path

import pytest

from tests.trained_project import write_trained_project


@pytest.fixture(scope="session")
def trained_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    write_trained_project(folder)
    return folder


@pytest.fixture
def project(trained_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trained project of one's own, which is the current folder."""
    shutil.copytree(trained_template, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
