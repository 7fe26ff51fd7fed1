"""What a kind of source is: its parameters, and how its documents are read.

A kind is a subclass of `SourceKind` in a module of `stages/collect/sources/`, or of the project's own folder
`sources/`, with its name as the type of its field `kind`. Nothing else names it. Most kinds are a `NamedSource`;
`FileSource` has the files and `RowSource` the columns that several kinds share.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, get_args

from pydantic import Field

from stages.collect import sources
from stages.formats.rows import MISSING, field_of
from stages.runtime.credentials import without_credentials
from stages.runtime.entry import UserError, visible
from stages.runtime.section import Section, own_modules, require_distinct, subclasses_in

if TYPE_CHECKING:  # slow to import, and the parameters are checked without it
    from stages.collect.content_check import ContentCheck, SeenFiles
    from stages.collect.located import LocatedFile

Bytes = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[list[Name], Field(min_length=1)]
MixtureShare = Annotated[float, Field(gt=0, le=1)]

TOO_LARGE = "larger than max_document_bytes"

UNKNOWN = "NOASSERTION"
"""SPDX's name for a licence that is not known, for one among several."""


NumberedRow = tuple[int, Mapping[str, Any] | None]
"""The number of a row, from 1 on, and its values by their names; None where it is too large to be read."""


@dataclass(frozen=True, slots=True)
class SourceItem:
    """One thing that a source has: a text that is to be checked, or what is left out without that."""

    source: str
    path: str
    revision: str = ""
    license: str = ""
    """An SPDX expression, or empty where none is known."""
    content: "bytes | str | ContentCheck" = b""
    """Bytes of a file, text of a row, or what a check found there."""
    reason: str = ""
    """Why it is left out, in a few words: the report counts by them. Empty where it may be a document."""

    def __post_init__(self) -> None:
        """Write out lone surrogates (bytes of a file name that are not UTF-8), e.g. `\\udce9`."""
        for name in ("source", "path", "license"):
            text = getattr(self, name).encode("utf-8", "backslashreplace").decode("utf-8")
            object.__setattr__(self, name, text)


class Reading(NamedTuple):
    """How a run reads its sources: larger texts need not be read, nor files that an earlier run has seen."""

    max_document_bytes: int
    seen: "SeenFiles"


class SourcePart(NamedTuple):
    """Some items of a source, and how much of them is taken."""

    items: Iterable[SourceItem]
    max_bytes: int | None
    """Bytes of text; the first document that does not fit ends the part. None is no limit."""
    share: float
    """Of the documents."""


class SourceKind(Section):
    """Base of all kinds."""

    notable: ClassVar[tuple[str, ...]] = ()
    """Reasons to leave something out that point to a mistake in the parameters: a run prints how often it had them."""

    @property
    def libraries(self) -> list[str]:
        """Those that are the corpus, or that its texts depend on: requirements.lock must pin them."""
        return []

    @property
    def places(self) -> list[str]:
        """The files, folders and URLs that it reads, with wildcards or without: a run says which DVC does not see."""
        return []

    @abstractmethod
    def parts(self, reading: Reading) -> Iterator[SourcePart]:
        """What it gives. Raises UserError for what cannot be read, UnavailableError where a retry may help."""


class NamedSource(SourceKind):
    """What all sources of one's own have."""

    name: Name
    """The source's name in reports; documents of one source can be held out together."""
    revision: str
    """The source's version: a release or a commit; empty where there is none."""
    license: str
    """The SPDX expression of documents that name none themselves; empty is unknown."""
    share: MixtureShare
    """The weight of the source in a mixture: the share of its documents that is taken, drawn by a hash of their
    content. 1 takes all."""
    max_bytes: Bytes | None
    """Bytes of text to take, in the order of paths and rows; null is no limit. The first document that does not fit
    ends the source."""

    def parts(self, reading: Reading) -> Iterator[SourcePart]:
        """All items as one part."""
        yield SourcePart(self.items(reading), self.max_bytes, self.share)

    @abstractmethod
    def items(self, reading: Reading) -> Iterator[SourceItem]:
        """As `SourceKind.parts`."""

    def item(self, path: str, content: "bytes | str | ContentCheck") -> SourceItem:
        """A text of the source that is to be checked."""
        return SourceItem(self.name, path, self.revision, self.license, content)

    def left_out(self, path: str, reason: str) -> SourceItem:
        """Something of the source that is left out."""
        return SourceItem(self.name, path, reason=reason)


class FileSource(NamedSource):
    """A source that consists of files, here or at any URL that fsspec opens. A Ray cluster reads them side by side."""

    globs: Names
    """Paths with `*`, `?`, `[...]` and `**`, relative to the project's root; a folder's name takes all below it. Or
    URLs with the same wildcards, e.g. `s3://bucket/code/*.jsonl`; over HTTP `?` begins the query, and a URL without
    wildcards is one document. A URL that holds a credential is refused."""

    @property
    def places(self) -> list[str]:
        """As of all kinds."""
        return self.globs

    def items(self, reading: Reading) -> Iterator[SourceItem]:
        """The items of each file, in the order of the files' names. Raises what `items_of` does."""
        from stages.collect.located import HIDDEN, LINKED_FOLDER, OTHER_NAME, find  # slow with what it needs
        from stages.collect.reading import read_files

        files = [file for file in find(self.globs) if file.flaw not in (HIDDEN, LINKED_FOLDER, OTHER_NAME)]
        yield from read_files(files, partial(self.items_of, limit=reading.max_document_bytes))

    @abstractmethod
    def items_of(self, file: "LocatedFile", limit: int) -> Iterator[SourceItem]:
        """The items of one file; what is larger than `limit` bytes need not be read."""


class Fields(Section):
    """Names of the fields (columns) with a row's own facts; null where a row does not say. `meta.path` is nested."""

    source: Name | None
    """e.g. `repo_name`: what documents are held out by."""
    path: Name | None
    """e.g. `path` or `id`; else the file's path and the row's number."""
    license: Name | None
    """e.g. `license`: an SPDX expression, or a list of them, of which all must be allowed."""


class RowSource(NamedSource):
    """A source whose rows are one document each."""

    text: Name
    """The field (column) with the text: `content`, or nested in another one `meta.text`. A field of the whole name,
    dots included, comes first."""
    fields: Fields
    """Which fields of a row hold other facts."""

    def noted(self, rows: Iterable[NumberedRow], where: str) -> Iterator[NumberedRow]:
        """The rows. Prints a line about each of `fields` that none of them has, when no more are asked for."""
        absent = sorted({field for field in self.fields.model_dump().values() if field})
        any_row = False
        try:
            for number, values in rows:
                if values is not None:
                    any_row = True
                    absent = [field for field in absent if field_of(values, field) is MISSING]
                yield number, values
        finally:
            # With a misspelt `license` each row has that of the source.
            for field in absent if any_row else ():
                note = f"note: params.yaml: collect.sources: fields: no row of {where} has `{field}`"
                print(visible(note), flush=True)

    def row(self, values: Mapping[str, Any], row_name: str) -> SourceItem:
        """A row with its own facts, or the source's. Raises UserError if it has no field with the text."""
        text = field_of(values, self.text)
        if text is MISSING:
            raise UserError(f"{row_name}: no field `{self.text}`; it has {', '.join(sorted(map(str, values)))}")
        named = self.fields.model_dump().items()
        own = {name: _as_text(name, field_of(values, field)) if field else "" for name, field in named}
        source = own["source"] or self.name
        if not isinstance(text, str | bytes):
            return SourceItem(source, row_name, reason="no text in the row")
        path, license = without_credentials(own["path"] or row_name), own["license"] or self.license
        return SourceItem(source, path, self.revision, license, text)


def _as_text(fact: str, value: Any) -> str:
    """A fact of a row as text. Of several licences each applies to the document, so all of them must be allowed."""
    if value is None or value is MISSING:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if fact == "license" and isinstance(value, list):
        licenses = list(dict.fromkeys(_as_text(fact, license) for license in value))
        if len(licenses) > 1:
            return " AND ".join(f"({license})" if " " in license else license or UNKNOWN for license in licenses)
        return "".join(licenses)
    return str(value)


@cache
def source_kinds() -> tuple[type[SourceKind], ...]:
    """Every kind of source: ours, and the project's own."""
    ours = sorted(module.name for module in iter_modules(sources.__path__) if not module.ispkg)
    modules = [import_module(f"stages.collect.sources.{name}") for name in ours]
    modules += [import_module(f"sources.{name}") for name in own_modules("sources")]
    found = [kind for kind in subclasses_in(modules, SourceKind) if "kind" in kind.model_fields]  # type: ignore[type-abstract]
    names = ((kind.__module__, name) for kind in found for name in get_args(kind.model_fields["kind"].annotation))
    require_distinct(names, "kind")
    return tuple(found)
