from collections.abc import Callable, Iterator

import pytest

from stages.evaluate.score.judge import Judge
from stages.evaluate.score.params import Limits
from stages.evaluate.score.programs import Program
from stages.formats.evaluation.verdicts import Outcome

LIMITS = Limits(cpu_seconds=1, wall_seconds=3.0, memory_megabytes=256)

Run = Callable[..., Outcome]


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
