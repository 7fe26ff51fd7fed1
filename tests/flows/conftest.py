"""What tests of flows share: a Prefect server for their runs, and a real pipeline that is up to date."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from tests.flows.operated import operated
from tests.flows.small_pipeline import STAGES, make_pipeline, repro


@pytest.fixture(scope="session", autouse=True)
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A server for all runs of this test process: each would start one of its own, which takes seconds."""
    with operated(tmp_path_factory.mktemp("shared-server")) as server:
        os.environ["PREFECT_API_URL"] = server.address
        yield
        del os.environ["PREFECT_API_URL"]


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
