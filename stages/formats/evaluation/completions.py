"""Completions of code problems, `data/completions.jsonl`: a line per sample. `generate` writes them, `score` runs them.

Sorted by task_id and sample, so that the file does not depend on the order in which samples were finished.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from stages.formats.evaluation.reading import parse
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import UserError

COMPLETIONS = Path("data/completions.jsonl")

Ended: TypeAlias = Literal["eos", "stop", "length"]
"""Why a text ended: the model ended the document, a stop string was written, or the tokens were used up."""


class Completion(BaseModel):
    """One sample of one problem."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    task_id: str
    """The problem's."""
    sample: int
    """Which of the problem's samples, counted from 0."""
    seed: int
    """Of this sample alone."""
    completion: str
    """What the model wrote after the prompt, up to the stop string."""
    ended: Ended

    @property
    def sort_key(self) -> tuple[str, int]:
        """The order in the file."""
        return (self.task_id, self.sample)


def completions_text(completions: Iterable[Completion]) -> str:
    """The file's text."""
    ordered = sorted(completions, key=lambda one: one.sort_key)
    return "".join(f"{completion.model_dump_json()}\n" for completion in ordered)


def write_completions(completions: Iterable[Completion], path: Path = COMPLETIONS) -> None:
    """Write the file, sorted."""
    atomic_write(path, completions_text(completions))


def read_completions(path: Path = COMPLETIONS) -> list[Completion]:
    """Read the file. Raises UserError that names the first line that is not a completion."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); run `dvc repro generate`") from None
    return [
        parse(line, Completion, f"{path}: line {number}", "run `dvc repro generate`")
        for number, line in enumerate(text.split("\n"), start=1)
        if line
    ]
