"""What a source gives before it is judged, and what was left out of it."""

from dataclasses import dataclass

from stages.collect.look import Look


@dataclass(frozen=True, slots=True)
class Raw:
    """One text as a source has it: bytes of a file, text of a row, or what was seen there."""

    source: str
    revision: str
    path: str
    license: str
    """An SPDX expression, or empty where none is known."""
    content: bytes | str | Look


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One thing that a source has and the corpus has not, with the reason."""

    source: str
    path: str
    reason: str
    """A few words, the same for all that were left out alike: the report counts by it."""
