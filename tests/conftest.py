"""What every test shares: nothing is sent out, and each test process uses one thread."""

import functools
import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

LONGEST = (
    "train/checkpoint/test_crashes.py",
    "flows/plan/test_change_matrix.py",
    "flows/test_planted_passwords.py",
    "docs/test_tutorial.py",
    "flows/test_scheduled.py",
    "flows/sweep/test_sweep.py",
    "flows/sweep/test_pool.py",
    "flows/run/test_pages.py",
    "flows/test_deployments.py",
    "flows/test_repeat.py",
    "runtime/test_workers_on_ray.py",
    "train/test_failing_workers.py",
    "train/test_launcher.py",
    "flows/test_operations.py",
)
"""Files that take half a minute and more, the longest ones first."""

assert all((TESTS / name).exists() for name in LONGEST), "LONGEST names a file that is not there"

os.environ.update(
    {
        "DVC_NO_ANALYTICS": "1",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
)


gc.disable()  # until all is imported: see `pytest_collection_finish`

# How long an example takes depends on what else runs, and on tables that hypothesis makes once on a new machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let each test process begin with its share of the longest files, so that at the end none is alone with one.

    Of the list, xdist gives to each process an equal part in one piece.
    """
    processes = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    rank = {TESTS / name: number for number, name in enumerate(LONGEST)}
    long = sorted((item for item in items if item.path in rank), key=lambda item: rank[item.path])
    short = [item for item in items if item.path not in rank]
    ordered: list[pytest.Item] = []
    for process in range(processes):
        own = [item for item in long if rank[item.path] % processes == process]
        room = max(0, (len(items) - len(ordered)) // (processes - process) - len(own))
        ordered += own + short[:room]
        del short[:room]
    items[:] = ordered


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a program that this machine does not have. `pytest -ra` names each reason once."""
    if item.get_closest_marker("needs_bwrap") and not bwrap_works():
        pytest.skip("no working bubblewrap: the sandbox of generated code is not tested (apt-get install bubblewrap)")
    if item.get_closest_marker("needs_ssh_keygen") and shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen: signatures are not tested (apt-get install openssh-client)")


@functools.cache
def bwrap_works() -> bool:
    """Whether bubblewrap is installed and may make namespaces, which many containers forbid."""
    isolated = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    return (
        shutil.which("bwrap") is not None and subprocess.run(isolated, capture_output=True, check=False).returncode == 0
    )


def pytest_collection_finish() -> None:
    """What is imported by now all stays: to look for garbage among it again and again takes longer than most tests."""
    gc.enable()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_folder() -> Iterator[None]:
    """A test that leaves the process in another folder fails, instead of a later one that reads a relative path."""
    before = Path.cwd()
    yield
    assert Path.cwd() == before
