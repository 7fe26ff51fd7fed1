"""Files on this machine or at URLs, each read as what its name says: text, or rows of JSON, CSV or Parquet."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import AfterValidator, Field

from stages.collect.find import FoundFile, before_wildcards, find, opened
from stages.collect.rows import Fields, rows_as_items
from stages.collect.source_kinds import TOO_LARGE, NamedSource, Names, SourceItem, SourceName
from stages.formats.opening import ARCHIVES, HEAD_BYTES, ROWS, ending, is_binary, text_reader
from stages.formats.rows import numbered_rows
from stages.runtime.errors import visible
from stages.runtime.section import NamedFile

ARCHIVE = "archive (unpack it)"

WEB_PAGE = (".html", ".htm", ".xhtml")


class _Glob(NamedFile):
    @property
    def path(self) -> Path:
        return before_wildcards(self)


Glob = Annotated[SourceName, AfterValidator(lambda glob: glob if "://" in glob else _Glob(glob))]
"""A path or URL with wildcards."""


class Files(NamedSource):
    """Files, read by extension: a text file is one document; so is each row of JSON lines, JSON, CSV, TSV, Parquet."""

    kind: Literal["files"]
    globs: Annotated[list[Glob], Field(min_length=1)]
    """Paths with `*`, `?`, `[...]` and `**`, relative to the project's root; a folder's name takes all below it. Or
    URLs with the same wildcards, e.g. `s3://bucket/code/*.jsonl`; over HTTP `?` begins the query, and a URL without
    wildcards is one document. A URL that holds a credential is refused."""
    text: Names
    """The fields (columns) that hold the text of a row: the first of these that is not blank. `meta.text` is nested."""
    fields: Fields
    """Which fields of a row hold other facts."""
    part_bytes: Annotated[int, Field(ge=1000)] | None
    """A longer text file, such as a book, is cut into parts of at most that size, each a document: after the last blank
    line of the second half of a part, else at a line's end. null: each file is one document."""

    def items(self, limit: int) -> Iterator[SourceItem]:
        """The documents of each file, in the order of the files' names. Raises UserError for a file that cannot be
        read, for broken rows, and for JSON under another name."""
        for file in find(self.globs):
            end = ending(file.name)
            if file.flaw or end in ARCHIVES:
                yield self.left_out(file.name, file.flaw or ARCHIVE)
            elif end in ROWS:
                with opened(file) as stream:
                    columns = [*self.text, *self.fields.named]
                    rows = numbered_rows(file.name, stream, columns, self.fields.named, limit)
                    yield from rows_as_items(self, rows, file.name, self.text, self.fields)
            else:
                if end in WEB_PAGE:
                    self.notes.append(visible(f"{file.name}: kept with its tags; extract its text first (trafilatura)"))
                yield from self._text(file, limit)

    def _text(self, file: FoundFile, limit: int) -> Iterator[SourceItem]:
        with opened(file) as stream:
            reader = text_reader(file.name, stream)
            if self.part_bytes is None:
                content = reader.read(HEAD_BYTES)  # not `limit`, for which memory is taken from the system each time
                if len(content) == HEAD_BYTES:
                    content += reader.read(max(limit + 1 - HEAD_BYTES, 0))
                too_large = len(content) > limit
                yield self.left_out(file.name, TOO_LARGE) if too_large else self.item(file.name, content)
                return
            for number, (part, is_last) in enumerate(text_parts(reader, self.part_bytes), start=1):
                if number == 1 and not is_last and is_binary(part):
                    # All of it is left out, for the same reason.
                    yield self.item(file.name, part + reader.read(limit))
                    return
                yield self.item(file.name if is_last and number == 1 else f"{file.name}#{number}", part)


def text_parts(stream: BinaryIO, size: int) -> Iterator[tuple[bytes, bool]]:
    """The parts of UTF-8 text, each with whether it is the last."""
    rest = b""
    while True:
        rest += stream.read(size + 1 - len(rest))
        if len(rest) <= size:
            yield rest, True
            return
        cut = _cut(rest[:size])
        yield rest[:cut], False
        rest = rest[cut:]


def _cut(text: bytes) -> int:
    """The end of a part: after a blank line, a line or a word of its second half, else after a character."""
    for end in (b"\n\n", b"\n\r\n", b"\n", b" "):
        found = text.rfind(end, len(text) // 2)
        if found >= 0:
            return found + len(end)
    cut = len(text)
    # A byte that continues a character; a character has at most 4 bytes.
    while cut > len(text) - 4 and (text[cut - 1] & 0xC0) == 0x80:
        cut -= 1
    return cut - 1 if text[cut - 1] >= 0xC0 else cut
