"""What can be wrong with a file of a revision."""

from dataclasses import dataclass
from typing import Literal

Problem = Literal["missing", "differs", "unlisted", "unknown", "link", "unreadable", "unbound", "edited", "contradicts"]

IN_WORDS: dict[Problem, str] = {
    "missing": "is missing",
    "differs": "differs from what was published",
    "unlisted": "is not of this revision",
    "unknown": "is not of this revision: no stage makes it, and no publication writes it",
    "link": "is a link or a special file, which no revision holds",
    "unreadable": "cannot be read",
    "unbound": "belongs to other weights",
    "edited": "is not what the pipeline made",
    "contradicts": "contradicts the rest of the record",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A file of a revision that is not as it was published, or not what its record says that it is."""

    path: str
    problem: Problem
    detail: str = ""
    """What was expected, and what was found."""

    def __str__(self) -> str:
        """In words."""
        return f"{self.path}: {IN_WORDS[self.problem]}" + (f": {self.detail}" if self.detail else "")
