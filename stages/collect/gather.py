"""From sources to documents: what is taken, what is left out and why."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from stages.collect.content_check import ContentCheck, SeenFiles, UnreadDocument, check_content
from stages.collect.licenses import is_allowed
from stages.collect.params import (
    Archives,
    CollectParams,
    Csv,
    Files,
    Hub,
    Jsonl,
    Origin,
    Packages,
    Parquet,
    Source,
    StandardLibrary,
)
from stages.collect.raw import TOO_LARGE, LeftOut, RawDocument
from stages.collect.sources.archives import read_archives
from stages.collect.sources.files import read_files
from stages.collect.sources.packages import read_package, read_standard_library
from stages.collect.sources.rows import read_csv, read_hub, read_jsonl, read_parquet
from stages.collect.trie import AnyDocument
from stages.formats.documents import Document

NAMED_AT_MOST = 100_000
"""The most left out texts that are named in the report; the others are counted."""


@dataclass(slots=True)
class Taken:
    """What the corpus takes and what it leaves out, counted while the documents pass."""

    documents: Counter[str] = field(default_factory=Counter)
    """Source -> documents."""
    bytes: Counter[str] = field(default_factory=Counter)
    """Source -> bytes of text."""
    total_bytes: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Reason -> texts left out."""
    left_out: list[LeftOut] = field(default_factory=list)
    """The first of them."""

    def take(self, document: AnyDocument) -> None:
        """Count a document that becomes part of the corpus."""
        self.documents[document.source] += 1
        self.bytes[document.source] += document.size
        self.total_bytes += document.size

    def leave_out(self, left_out: LeftOut) -> None:
        """Count a text that does not, and name it while there is room."""
        self.reasons[left_out.reason] += 1
        if len(self.left_out) < NAMED_AT_MOST:
            self.left_out.append(left_out)


def gather(params: CollectParams, taken: Taken, seen: SeenFiles) -> Iterator[AnyDocument]:
    """Every document of every source, within the limits; `taken` counts them, `seen` knows files from earlier runs."""
    for source in params.sources:
        share = source.share if isinstance(source, Origin) else 1.0
        for reading, limit in open_source(source, params.max_document_bytes, seen):
            for document in within(limit, accepted(reading, share, params, taken), taken):
                if params.max_bytes is not None and taken.total_bytes + document.size > params.max_bytes:
                    taken.leave_out(
                        LeftOut(document.source, document.path, "over collect.max_bytes, with all after it")
                    )
                    return
                taken.take(document)
                yield document


def open_source(
    source: Source, max_document_bytes: int, seen: SeenFiles
) -> Iterator[tuple[Iterable[RawDocument | LeftOut], int | None]]:
    """What a source gives, each part with its limit in bytes."""
    match source:
        case Packages():
            for name in source.names:
                yield read_package(name, source.tests), source.max_bytes_each
        case StandardLibrary():
            yield read_standard_library(source.tests), source.max_bytes
        case Files():
            yield read_files(source, max_document_bytes, seen), source.max_bytes
        case Archives():
            yield read_archives(source, max_document_bytes), source.max_bytes
        case Jsonl():
            yield read_jsonl(source, max_document_bytes), source.max_bytes
        case Csv():
            yield read_csv(source, max_document_bytes), source.max_bytes
        case Parquet():
            yield read_parquet(source), source.max_bytes
        case Hub():
            yield read_hub(source), source.max_bytes


def accepted(
    reading: Iterable[RawDocument | LeftOut], share: float, params: CollectParams, taken: Taken
) -> Iterator[AnyDocument]:
    """The documents among what a source gives; the rest is counted with its reason."""
    allowed = frozenset(params.licenses)
    for raw in reading:
        found = raw if isinstance(raw, LeftOut) else examine(raw, allowed, params)
        if not isinstance(found, LeftOut) and not is_drawn(found.id, share):
            found = LeftOut(found.source, found.path, "not in the source's share")
        if isinstance(found, LeftOut):
            taken.leave_out(found)
        else:
            yield found


def is_drawn(identifier: str, share: float) -> bool:
    """Whether a document belongs to a share of its source; it depends on its content alone."""
    return int(identifier[-16:], 16) < share * 2**64


def examine(raw: RawDocument, allowed: frozenset[str], params: CollectParams) -> AnyDocument | LeftOut:
    """A raw document as a document, or why it is left out."""

    def left_out(reason: str) -> LeftOut:
        return LeftOut(raw.source, raw.path, reason)

    if not (is_allowed(raw.license, allowed) if raw.license else params.unlicensed):
        return left_out(f"licence not allowed: {raw.license or 'unknown'}")
    found = raw.content if isinstance(raw.content, ContentCheck) else check_content(raw.content)
    if found.size > params.max_document_bytes:
        return left_out(TOO_LARGE)
    if found.flaw:
        return left_out(found.flaw)
    if found.text is None:
        return UnreadDocument(found.id, raw.source, raw.revision, raw.path, raw.license, found.size)
    return Document(found.id, raw.source, raw.revision, raw.path, raw.license, found.text)


def within(limit: int | None, documents: Iterable[AnyDocument], taken: Taken) -> Iterator[AnyDocument]:
    """The documents up to the first that does not fit into `limit` bytes of text any more."""
    total = 0
    for document in documents:
        total += document.size
        if limit is not None and total > limit:
            taken.leave_out(LeftOut(document.source, document.path, "over the source's max_bytes, with all after it"))
            return
        yield document
