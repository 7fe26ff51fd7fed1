"""What is run for a sample: the program of the candidate, and the tests, which run apart from it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass

from stages.formats.evaluation.completions import Completion
from stages.formats.evaluation.problems import Problem
from stages.runtime.entry import UserError
from stages.runtime.shard_cache import cache_key


@dataclass(frozen=True, slots=True)
class Program:
    """A candidate and its tests."""

    code: str
    """What the model was given and what it wrote."""
    context: str
    """The problem's own code, whose functions the tests may use."""
    test: str
    entry_point: str
    """The function that the tests' `check` is called with; empty where the tests are plain assertions."""

    @property
    def key(self) -> str:
        """Equal programs have equal keys, and one verdict."""
        return cache_key(*astuple(self))


def python_program(problem: Problem, completion: str) -> Program:
    """HumanEval: prompt + completion, tested by `check(entry_point)` (Chen et al. 2021). MBPP: the completion, tested
    by assertions (Austin et al. 2021)."""
    if problem.kind == "humaneval":
        return Program(f"{problem.prompt}{completion}\n", problem.prompt, problem.test, problem.entry_point)
    return Program(f"{completion}\n", "", problem.test, "")


LANGUAGES: dict[str, Callable[[Problem, str], Program]] = {"python": python_program}
"""Language of a problem -> its programs. Another language needs its programs here, and a process in inside/ that runs
them and speaks its messages (inside/peer.py)."""


def program(problem: Problem, completion: str) -> Program:
    """The program of a sample. Raises UserError for a language that cannot be run."""
    if problem.language not in LANGUAGES:
        raise UserError(
            f"{problem.task_id}: programs in {problem.language} cannot be run (known: {', '.join(LANGUAGES)}); leave "
            "its problems out, or set score.run_generated_code to false"
        )
    return LANGUAGES[problem.language](problem, completion)


def programs_of(problems: Mapping[str, Problem], completions: Sequence[Completion]) -> list[Program]:
    """The program of each completion; `problems` by task_id. Raises UserError for one of an unknown problem."""
    for completion in completions:
        if completion.task_id not in problems:
            raise UserError(f"{completion.task_id}: a completion of a problem that is not among the problems")
    return [program(problems[completion.task_id], completion.completion) for completion in completions]
