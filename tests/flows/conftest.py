"""What tests of flows share: a Prefect server for their runs, and a real pipeline that is up to date."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from tests.flows.operated import Operated, shared
from tests.flows.small_pipeline import STAGES, make_pipeline, repro


@pytest.fixture(scope="session")
def of_all_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all test processes of this run have."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def shared_server(of_all_processes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """A server for all runs of all test processes: each run would start one of its own, which takes seconds."""
    with shared(of_all_processes / "shared-server", tmp_path_factory.mktemp("home")) as server:
        os.environ["PREFECT_API_URL"] = server.address
        yield server
        del os.environ["PREFECT_API_URL"]


WITHOUT_RUNS = {"experiments", "plan", "project"}
"""Folders of tests that start no run."""


@pytest.fixture(autouse=True)
def server_of_runs(request: pytest.FixtureRequest) -> None:
    """Have the shared server for each test that may start a run."""
    if request.path.parent.name not in WITHOUT_RUNS:
        request.getfixturevalue("shared_server")


@pytest.fixture(scope="session")
def up_to_date(of_all_processes: Path) -> Path:
    """Built by the first test process that comes; copy it before you change it."""
    made = of_all_processes / "up-to-date"
    with FileLock(f"{made}.lock"):
        if not (made / "done").exists():
            shutil.rmtree(made, ignore_errors=True)
            folder = make_pipeline(made / "project")
            assert repro(folder) == STAGES
            (made / "done").touch()
    return made / "project"
