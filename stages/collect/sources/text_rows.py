"""Rows of text, one document each: JSON lines and CSV."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO, Literal, cast

from stages.collect.located import LocatedFile, decompressed
from stages.collect.source_kinds import TOO_LARGE, FileSource, RowSource, SourceItem
from stages.formats.reports import json_object
from stages.runtime.entry import UserError

ESCAPED_BYTES = 6
r"""Bytes that a byte of text takes at most in JSON (`\u0000`)."""


class Jsonl(FileSource, RowSource):
    """Lines of JSON objects, one document each."""

    kind: Literal["jsonl"]

    def items_of(self, file: LocatedFile, limit: int) -> Iterator[SourceItem]:
        """Each line. Raises UserError that names a line that is not a JSON object with the text field."""
        with decompressed(file) as stream:
            rows = (
                (number, None if line is None else json_object(line, f"{file.name}: line {number}"))
                for number, line in enumerate(lines(stream, longest_line(limit)), start=1)
                if line is None or line.strip()
            )
            for number, row in self.noted(rows, file.name):
                row_name = f"{file.name}#{number}"
                yield self.left_out(row_name, TOO_LARGE) if row is None else self.row(row, row_name)


class Csv(FileSource, RowSource):
    """CSV files with a heading, one document a row."""

    kind: Literal["csv"]

    def items_of(self, file: LocatedFile, limit: int) -> Iterator[SourceItem]:
        """Each row. Raises UserError that names a line that is not CSV, or that has not a cell a column, and a column
        of `fields` that the file lacks."""
        longest = longest_line(limit)
        csv.field_size_limit(longest)
        with decompressed(file) as stream:
            for number, row in enumerate(_csv_rows(file.name, stream, longest), start=1):
                # As of Parquet: with a misspelt `license` all rows would have that of the source.
                for name in filter(None, self.fields.model_dump().values()) if number == 1 else ():
                    if name not in row:
                        raise UserError(f"{file.name}: no column `{name}`; it has {', '.join(sorted(row))}")
                yield self.row(row, f"{file.name}#{number}")


def longest_line(max_document_bytes: int) -> int:
    """Bytes of a line with a document of that size and its other fields; longer ones are never held in memory."""
    return ESCAPED_BYTES * max_document_bytes + 2**16


def lines(file: BinaryIO, limit: int) -> Iterator[bytes | None]:
    """The lines of a file; None for one of more than `limit` bytes."""
    # `readline` of fsspec's own files knows no limit.
    reader = io.BufferedReader(cast("io.RawIOBase", file))
    while line := reader.readline(limit):
        if len(line) < limit or line.endswith(b"\n"):
            yield line
        else:
            while line and not line.endswith(b"\n"):
                line = reader.readline(limit)
            yield None


def _csv_rows(name: str, stream: BinaryIO, limit: int) -> Iterator[dict[str, str]]:
    """Column -> cell, for each row. Not csv.DictReader: it cuts and fills rows of another length without a word."""
    reader = csv.reader(_csv_lines(stream, limit), strict=True)
    columns: list[str] = []
    line = 1  # where the row begins
    try:
        for cells in reader:
            if not columns:
                columns = cells
                if repeated := [column for column, count in Counter(columns).items() if count > 1]:
                    raise UserError(f"{name}: several columns are named `{repeated[0]}`; rename them")
            elif len(cells) == len(columns):
                yield dict(zip(columns, cells, strict=True))
            elif cells:  # else an empty line
                raise UserError(
                    f"{name}: line {line} has {len(cells)} cells, and there are {len(columns)} columns; quote a cell "
                    "that holds a comma, or correct or remove the line"
                )
            line = reader.line_num + 1
    except (csv.Error, UnicodeError) as error:
        raise UserError(f"{name}: line {line} is not valid CSV ({error})") from None


def _csv_lines(stream: BinaryIO, limit: int) -> Iterator[str]:
    """Lines as text, each decoded when its turn comes, so that a bad byte is found in its own line."""
    encoding = "utf-8-sig"  # the first line's
    for line in lines(stream, limit):
        if line is None:
            raise csv.Error(f"longer than {limit:,} bytes; raise collect.max_document_bytes or correct it")
        # A carriage return alone ends a line too.
        yield from re.split(r"(?<=\r)(?!\n)", line.decode(encoding))
        encoding = "utf-8"
