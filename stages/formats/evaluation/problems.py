"""Code problems: what a model is to complete, and the tests that its programs have to pass.

Rows of two formats are read (stages/formats/rows.py); the fields of a row tell which one it is:

- HumanEval's (Chen et al. 2021, arXiv:2107.03374): task_id, prompt, entry_point, canonical_solution, and a test that
  defines `check(candidate)`. The program that is scored is prompt + completion + test + a call of check.
- MBPP's (Austin et al. 2021, arXiv:2108.07732): task_id, text (in the sanitized set: prompt), code, test_list, and
  test_setup_code or test_imports. The program that is scored is completion + test. The model reads the text and the
  first test in a docstring, zero-shot, as InCoder did (Fried et al. 2022, arXiv:2204.05999); the paper's own prompt is
  few-shot and for instructed models. `challenge_test_list` is not used, as in published results.

The stage `generate` writes the problems that it completed to `data/problems.jsonl`, a `Problem` a line, and `score`
reads them there: both see the same set, wherever it came from.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import AliasChoices, BaseModel, Field, ValidationError

from stages.formats.reports import first_fault, write_lines
from stages.formats.rows import read_json_lines, read_row_file
from stages.runtime.errors import UserError

PROBLEMS = Path("data/problems.jsonl")
"""The problems that were completed."""

ProblemFormat: TypeAlias = Literal["humaneval", "mbpp"]


class Problem(BaseModel, frozen=True, extra="forbid", strict=True):
    """One problem."""

    task_id: str
    """Unique in all sets together."""
    prompt: str
    """The text that the model reads."""
    test: str
    """HumanEval: code that defines `check(candidate)`. MBPP: imports and assertions that run after the completion."""
    entry_point: str
    """HumanEval: the name of the function that `check` is called with. MBPP: empty."""
    solution: str
    """A completion that passes: the canonical one."""
    kind: ProblemFormat
    """How completion and test become a program."""
    language: str
    """The programming language, e.g. `python`."""


class MbppRow(BaseModel, frozen=True, strict=True):
    """The fields of a row of MBPP that a prompt and a test are made of."""

    task_id: int | str
    text: str = Field(validation_alias=AliasChoices("text", "prompt"))
    test_list: list[str] = Field(min_length=1)
    """Assertions; without one every completion would pass."""
    test_setup_code: str | None = None
    test_imports: list[str] | None = None

    @property
    def code(self) -> str:
        """The code that runs after the completion."""
        return "\n".join(filter(None, [self.test_setup_code, *(self.test_imports or ()), *self.test_list]))


def read_problems(path: Path, language: str = "python") -> list[Problem]:
    """The problems of a file in HumanEval's or MBPP's format, in its order; all are taken to be in `language`.

    Raises UserError that names the row and the field that is missing or wrong, or a task_id that occurs twice.
    """
    return require_unique([as_problem(row, where, language) for where, row in read_row_file(path)], str(path))


def as_problem(row: Mapping[str, Any], where: str, language: str) -> Problem:
    """A row of HumanEval or MBPP. `where` names it in messages. Raises UserError if a field is missing or wrong."""
    try:
        problem = _mbpp(row, language) if "test_list" in row else _humaneval(row, language)
        "".join(problem.model_dump().values()).encode()
        return problem
    except KeyError as error:
        raise UserError(
            f"{where}: no field {error}; expected HumanEval's (task_id, prompt, entry_point, canonical_solution, test) "
            "or MBPP's (task_id, text, code, test_list)"
        ) from None
    except ValidationError as error:
        raise UserError(f"{where}: {first_fault(error)}") from None
    except UnicodeEncodeError:
        raise UserError(f"{where}: half of a surrogate pair (\\ud800 to \\udfff) is not a character") from None


def _humaneval(row: Mapping[str, Any], language: str) -> Problem:
    same = {name: row[name] for name in ("task_id", "prompt", "entry_point", "test")}
    return Problem(**same, solution=row["canonical_solution"], kind="humaneval", language=language)


def _mbpp(row: Mapping[str, Any], language: str) -> Problem:
    read = MbppRow.model_validate(row)
    return Problem(
        task_id=f"MBPP/{read.task_id}",
        prompt=f'"""\n{read.text}\n{read.test_list[0]}\n"""\n',
        test=read.code,
        entry_point="",
        solution=row["code"],
        kind="mbpp",
        language=language,
    )


def require_unique(problems: Sequence[Problem], where: str) -> list[Problem]:
    """The problems. Raises UserError if there are none, or two have one task_id."""
    repeated = [name for name, count in Counter(problem.task_id for problem in problems).items() if count > 1]
    if repeated:
        raise UserError(f"{where}: task_id `{repeated[0]}` occurs more than once; each problem needs its own")
    if not problems:
        raise UserError(f"{where}: holds no problems")
    return list(problems)


def problems_sha256(problems: Iterable[Problem]) -> str:
    """The sha256 of the problems, in hex; their order does not count."""
    return sha256(_text(problems).encode("utf-8")).hexdigest()


def write_problems(problems: Iterable[Problem]) -> None:
    """Write `data/problems.jsonl`, sorted by task_id."""
    write_lines(PROBLEMS, _text(problems))


def _text(problems: Iterable[Problem]) -> str:
    return "".join(f"{problem.model_dump_json()}\n" for problem in sorted(problems, key=lambda one: one.task_id))


def read_written_problems() -> list[Problem]:
    """Read `data/problems.jsonl`. Raises UserError if it is missing or damaged."""
    return read_json_lines(PROBLEMS, Problem, "run `dvc repro generate`")
