import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stages.evaluate.score.params import Limits
from stages.evaluate.score.sandbox import run_sandboxed, sandbox_command
from stages.formats.evaluation.scores import Outcome

LIMITS = Limits(cpu_seconds=10, wall_seconds=300.0, memory_megabytes=256)
"""Far more time than these programs need, also on a slow machine."""

SHORT = Limits(cpu_seconds=1, wall_seconds=3.0, memory_megabytes=256)
"""For programs that only a limit ends."""

Run = Callable[..., Outcome]


@pytest.fixture
def run() -> Run:
    """Judge a candidate by HumanEval's convention: `check(f)`."""
    return lambda code, test, limits=LIMITS: run_sandboxed(f"{code}\n{test}\ncheck(f)", limits)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may read, and not below /tmp: a candidate has a /tmp of its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(autouse=True)
def sandbox_of_this_test() -> Iterator[None]:
    """The command follows from the environment, which a test may change."""
    sandbox_command.cache_clear()
    yield
    sandbox_command.cache_clear()
