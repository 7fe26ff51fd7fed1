"""What a source gives before it is checked, and what was left out of it."""

from dataclasses import dataclass

from stages.collect.content_check import ContentCheck

TOO_LARGE = "larger than max_document_bytes"


def as_unicode(name: str) -> str:
    """A name with its lone surrogates (bytes of a file name that are not UTF-8) written out, e.g. `\\udce9`."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(frozen=True, slots=True)
class RawDocument:
    """One text as a source has it: bytes of a file, text of a row, or what a check found there."""

    source: str
    revision: str
    path: str
    license: str
    """An SPDX expression, or empty where none is known."""
    content: bytes | str | ContentCheck

    def __post_init__(self) -> None:
        for field in ("source", "path", "license"):
            object.__setattr__(self, field, as_unicode(getattr(self, field)))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One thing that a source has and the corpus does not have, with the reason."""

    source: str
    path: str
    reason: str
    """A few words, the same for all that were left out alike: the report counts by it."""

    def __post_init__(self) -> None:
        for field in ("source", "path"):
            object.__setattr__(self, field, as_unicode(getattr(self, field)))
