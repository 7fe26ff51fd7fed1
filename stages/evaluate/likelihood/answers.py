"""Sets of answers: each answer is scored given its prompt, which is not scored.

A row has `prompt` and `completion`, or is a code problem (HumanEval's or MBPP's) whose solution is the answer.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from stages.evaluate.likelihood.documents import HeldOutSet
from stages.formats.documents import Document, document_id
from stages.formats.evaluation.problems import as_problem
from stages.formats.reports import first_fault
from stages.formats.rows import read_row_file
from stages.runtime.errors import UserError


class PromptedAnswer(BaseModel, frozen=True, strict=True):
    """A prompt and its answer."""

    prompt: str
    completion: str = Field(min_length=1)


def answer_set(name: str, path: Path) -> HeldOutSet:
    """The answers in a file. Raises UserError, naming the row, if a prompt or an answer is missing."""
    rows = [(where, _answer(row, where)) for where, row in read_row_file(path)]
    texts = [(where, row.prompt + row.completion) for where, row in rows]
    documents = [Document(document_id(text), name, "", where, "", text) for where, text in texts]
    return HeldOutSet(name, path, lambda: iter(documents), [row.prompt for _, row in rows])


def _answer(row: Mapping[str, Any], where: str) -> PromptedAnswer:
    try:
        if "completion" in row:
            return PromptedAnswer.model_validate(row)
        problem = as_problem(row, where, language="")
        return PromptedAnswer(prompt=problem.prompt, completion=problem.solution)
    except ValidationError as error:
        raise UserError(f"{where}: {first_fault(error)}") from None


def answers_note(sets: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for the report if there are sets of answers."""
    if sets:
        yield (
            f"In {', '.join(sorted(sets))} only the answers are scored, in bits per byte of the answer; the prompt is "
            "context."
        )
