"""A real pipeline that is up to date, shared by the tests that change it."""

import os
import shutil
from pathlib import Path

import pytest
from filelock import FileLock

from tests.flows.small_pipeline import STAGES, make_pipeline, repro


@pytest.fixture(scope="session")
def up_to_date(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the first test process that comes; copy it before you change it."""
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "up-to-date"
    with FileLock(f"{shared}.lock"):
        if not (shared / "done").exists():
            shutil.rmtree(shared, ignore_errors=True)
            folder = make_pipeline(shared / "project")
            assert repro(folder) == STAGES
            (shared / "done").touch()
    return shared / "project"
