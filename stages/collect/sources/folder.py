"""A folder of mixed files: text, and among it rows and archives, each read as what its name says that it is."""

import csv
from collections.abc import Iterator
from typing import Annotated, BinaryIO, ClassVar, Literal

from pydantic import Field

from stages.collect.located import COMPRESSED, LocatedFile, decompressed, find, has_ending, opened
from stages.collect.source_kinds import Bytes, Fields, FileSource, Names, Reading, SourceItem
from stages.collect.sources.archives import Archives
from stages.collect.sources.files import Files, kind_of, why_no_text
from stages.collect.sources.tables import Parquet
from stages.collect.sources.text_rows import Csv, Jsonl, lines, longest_line
from stages.formats.reports import parse_json
from stages.runtime.entry import UserError

ROWS: dict[str, type[Jsonl] | type[Csv] | type[Parquet]] = {"jsonl": Jsonl, "csv": Csv, "parquet": Parquet}

UNREADABLE = "unreadable or damaged"
NO_TEXT_COLUMN = "rows without a column that `text` names"
IN_AN_ARCHIVE = "rows or an archive within an archive (unpack it)"


class Folder(FileSource):
    """Files of any kind: text is one document a file, JSON lines, CSV and Parquet one a row, archives one a member."""

    notable: ClassVar[tuple[str, ...]] = (NO_TEXT_COLUMN, IN_AN_ARCHIVE)

    kind: Literal["folder"]
    text: Names
    """The columns that hold the text of rows: of a file the first of these that it has."""
    part_bytes: Annotated[int, Field(ge=1000)] | None
    """A longer text file, such as a book, is cut into parts of at most that size, each a document: where the last blank
    line is in the second half of a part, else at a line's end. null: each file is one document."""
    max_unpacked_bytes: Bytes
    """An archive that unpacks to more is refused: a decompression bomb, or a limit to raise on purpose."""

    def items(self, reading: Reading) -> Iterator[SourceItem]:
        """Each file, row or member, in the order of the files' names. Raises UserError as a file's kind does."""
        from stages.collect.reading import text_items  # slow, and the parameters are checked without it

        yield from text_items(
            self,
            find(self.globs),
            reading,
            lambda name: "" if kind_of(name) else why_no_text(name),
            lambda file: bool(kind_of(file.name)) or self._may_be_long(file),
        )

    def items_of(self, file: LocatedFile, limit: int) -> Iterator[SourceItem]:
        """The rows of a file, the members of an archive, the parts of a long text, the text of a URL."""
        kind = kind_of(file.name)
        shared = {name: getattr(self, name) for name in FileSource.model_fields} | {"kind": kind or "files"}
        if not kind and self.part_bytes:
            yield from self._parts_of(file, self.part_bytes)
        elif not kind:
            yield from Files.model_validate(shared).items_of(file, limit)
        elif kind == "archives":
            own = {"suffixes": [], "max_unpacked_bytes": self.max_unpacked_bytes}
            for item in Archives.model_validate(shared | own).items_of(file, limit):
                within = not item.reason and why_no_text(item.path.removeprefix(file.name))
                yield self.left_out(item.path, IN_AN_ARCHIVE) if within else item
        else:
            columns = first_columns(kind, file, longest_line(limit))
            text = next((name for name in self.text if columns is None or name in columns), None)
            own = {"text": text, "fields": Fields(source=None, path=None, license=None)}
            if text is None:
                yield self.left_out(file.name, NO_TEXT_COLUMN)
            else:
                yield from ROWS[kind].model_validate(shared | own).items_of(file, limit)

    def _may_be_long(self, file: LocatedFile) -> bool:
        """Whether a text is to be read in parts: of a compressed one it is not known before."""
        if self.part_bytes is None:
            return False
        return (file.size or 0) > self.part_bytes or has_ending(file.name, COMPRESSED)

    def _parts_of(self, file: LocatedFile, size: int) -> Iterator[SourceItem]:
        """The parts of a text; one of which the beginning is no text is left out as a whole. What cannot be read of a
        file here is left out; at a URL it is no fault of the file, and the run ends."""
        from stages.collect.content_check import check_content  # slow, and the parameters are checked without it

        number = 0
        try:
            with decompressed(file) as stream:
                for part, is_last in parts(stream, size):
                    number += 1
                    if number == 1 and (flaw := check_content(part).flaw):
                        yield self.left_out(file.name, flaw)
                        return
                    yield self.item(file.name if is_last and number == 1 else f"{file.name}#{number}", part)
        except UserError:
            if file.state is None:
                raise
            yield self.left_out(f"{file.name}#{number + 1}" if number else file.name, UNREADABLE)


def parts(stream: BinaryIO, size: int) -> Iterator[tuple[bytes, bool]]:
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
    """Where a part ends: after a blank line or a line of its second half, else where a character ends."""
    for end in (b"\n\n", b"\n\r\n", b"\n", b" "):
        found = text.rfind(end, len(text) // 2)
        if found >= 0:
            return found + len(end)
    cut = len(text)
    while (
        cut > len(text) - 4 and (text[cut - 1] & 0xC0) == 0x80
    ):  # a byte that continues a character, of at most 4 bytes
        cut -= 1
    return cut - 1 if text[cut - 1] >= 0xC0 else cut


def first_columns(kind: str, file: LocatedFile, limit: int) -> list[str] | None:
    """The columns of a file, of JSON lines those of its first row; None where it is damaged, as its kind will say."""
    if kind == "parquet":
        import pyarrow as pa  # slow, and the parameters are checked without it
        import pyarrow.parquet as pq

        with opened(file) as stream:
            try:
                return list(pq.read_schema(stream).names)
            except (pa.ArrowException, OSError, UnicodeError):
                return None
    with decompressed(file) as stream:
        line = next((line for line in lines(stream, limit) if line is None or line.strip()), b"")
        try:
            text = (line or b"").decode("utf-8-sig")
            if kind == "csv":
                return next(csv.reader([text]), [])
            row = parse_json(text)
            return list(row) if isinstance(row, dict) else None
        except (ValueError, RecursionError, csv.Error):
            return None
