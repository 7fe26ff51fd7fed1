"""What every test shares: nothing is sent out, and each test process uses one thread."""

import functools
import gc
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

os.environ.update(
    {
        "DVC_NO_ANALYTICS": "1",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Tests commit, and a machine need not have a git identity.
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@example.org",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@example.org",
    }
)


gc.disable()  # until all is imported: see `pytest_collection_finish`

# How long an example takes depends on what else runs, and on tables that hypothesis makes once on a new machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a case with bytes by its argument: compressed ones hold a time, and all processes must name a test alike."""
    return argname if isinstance(val, bytes) else None


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


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """The limit of a shell of macOS, 256 files, of which a new process has six open; earlier tests have left others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 250, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(autouse=True)
def same_folder() -> Iterator[None]:
    """A test that leaves the process in another folder fails, instead of a later one that reads a relative path."""
    before = Path.cwd()
    yield
    assert Path.cwd() == before
