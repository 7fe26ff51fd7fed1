"""What a kind of source is: its parameters, and how its documents are read.

A kind is a subclass of `SourceKind` in a module of `stages/collect/sources/`, with its name as the type of its field
`kind`. Nothing else names it. Most kinds are a `NamedSource`.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, NamedTuple, get_args

from pydantic import Field, PrivateAttr

from stages.collect import sources
from stages.formats.opening import NULS, SURROGATE
from stages.runtime.atomic import NOT_HERE, NOT_PULLED
from stages.runtime.section import Section, require_distinct, subclasses_in

Bytes = Annotated[int, Field(ge=1)]
SourceName = Annotated[str, Field(min_length=1)]
Names = Annotated[list[SourceName], Field(min_length=1)]
MixtureShare = Annotated[float, Field(gt=0, le=1)]

TOO_LARGE = "larger than max_document_bytes"

WITH_REMEDY = (NOT_HERE, NOT_PULLED, NULS, SURROGATE)
"""Reasons to leave out what was probably meant to be read; they say how to repair it."""


@dataclass(frozen=True, slots=True)
class SourceItem:
    """One text of a source, or something that it leaves out."""

    source: str
    path: str
    revision: str = ""
    license: str = ""
    content: bytes | str = b""
    reason: str = ""
    """Why it is left out; empty if `content` is to be checked."""

    def __post_init__(self) -> None:
        """Write out lone surrogates (bytes of a file name that are not UTF-8), e.g. `\\udce9`."""
        for name in ("source", "path", "license"):
            text = getattr(self, name).encode("utf-8", "backslashreplace").decode("utf-8")
            object.__setattr__(self, name, text)


class SourcePart(NamedTuple):
    """Items that share their limits."""

    items: Iterator[SourceItem]
    max_bytes: int | None
    """Bytes of text; the first document that does not fit ends the part. None is no limit."""
    share: float
    """Share of the documents that is taken, drawn by their content."""


class SourceKind(Section):
    """Base of all kinds."""

    _notes: list[str] = PrivateAttr(default_factory=list)
    """Lines about files that gave less than they seem to hold; the run prints them at its end."""

    @property
    def notes(self) -> list[str]:
        """The notes of what has been read so far."""
        return self._notes

    @property
    def libraries(self) -> list[str]:
        """Libraries that are the corpus, or that its texts depend on: requirements.lock must pin them."""
        return []

    @abstractmethod
    def parts(self, limit: int) -> Iterator[SourcePart]:
        """Its items, in an order that depends on the source alone. Larger texts than `limit` bytes need not be read."""


class NamedSource(SourceKind):
    """A source with one name, revision and license for all of its documents."""

    name: SourceName
    """The documents' source: what can be held out together."""
    revision: str
    """The documents' revision: a release, a commit, a date; may be empty."""
    license: str
    """The SPDX license of all documents that do not say their own; empty if unknown."""
    share: MixtureShare
    """Which part of the source's documents is taken, to mix sources in given proportions: drawn by a hash of their
    content. 1 takes all."""
    max_bytes: Bytes | None
    """Bytes of text to take, in the order of paths and rows; null is no limit. The first document that does not fit
    ends the source."""

    def parts(self, limit: int) -> Iterator[SourcePart]:
        """All items as one part."""
        yield SourcePart(self.items(limit), self.max_bytes, self.share)

    @abstractmethod
    def items(self, limit: int) -> Iterator[SourceItem]:
        """As `SourceKind.parts`."""

    def item(self, path: str, content: bytes | str) -> SourceItem:
        """A text of the source."""
        return SourceItem(self.name, path, self.revision, self.license, content)

    def left_out(self, path: str, reason: str) -> SourceItem:
        """Something of the source that is left out."""
        return SourceItem(self.name, path, reason=reason)


@cache
def source_kinds() -> tuple[type[SourceKind], ...]:
    """Every kind of source."""
    names = sorted(module.name for module in iter_modules(sources.__path__) if not module.ispkg)
    modules = [import_module(f"stages.collect.sources.{name}") for name in names]
    found = [kind for kind in subclasses_in(modules, SourceKind) if "kind" in kind.model_fields]  # type: ignore[type-abstract]
    defined = ((kind.__module__, name) for kind in found for name in get_args(kind.model_fields["kind"].annotation))
    require_distinct(defined, "kind")
    return tuple(found)
