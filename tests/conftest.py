"""What every test shares: nothing is sent out, and each test process uses one thread."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

LONGEST = (
    "test_scheduled.py",
    "test_tutorial.py",
    "test_deployments.py",
    "test_crashes.py",
    "test_change_matrix.py",
    "test_repeat.py",
    "test_failing_workers.py",
    "test_launcher.py",
    "test_sweep.py",
    "test_pool.py",
)
"""Files with tests of half a minute and more. They come first: at the end no process is left alone with one of them."""

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)


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
