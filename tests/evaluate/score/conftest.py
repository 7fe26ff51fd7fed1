import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stages.evaluate.score.judge import Judge
from stages.evaluate.score.params import Limits
from stages.evaluate.score.programs import Program
from stages.formats.evaluation.verdicts import Outcome
from tests.small_project import ROOT

LIMITS = Limits(cpu_seconds=1, wall_seconds=3.0, memory_megabytes=256)

Run = Callable[..., Outcome]
RunPython = Callable[[str], str]

IMPORTS = """
import os, resource
from contextlib import closing
from pathlib import Path
from stages.evaluate.score.judge import RIGHT, Judge
from stages.evaluate.score.programs import Program
from stages.evaluate.score.scoring import judge_programs
from tests.evaluate.score.conftest import LIMITS
"""


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    judge = Judge(LIMITS)
    yield judge
    judge.close()


@pytest.fixture
def run(judge: Judge) -> Run:
    """Judge a program by HumanEval's convention: `check(f)`."""

    def run(code: str, test: str, context: str = "") -> Outcome:
        return judge.judge(Program(code, context, test, "f"))

    return run


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may read, and not below /tmp: a candidate has a /tmp of its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def run_python() -> RunPython:
    """Run code in a process of its own, whose limits it may change; returns what it prints last."""

    def run_python(code: str) -> str:
        command = [sys.executable, "-c", IMPORTS + code]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().splitlines()[-1]

    return run_python
