"""Rows of JSON lines, JSON, CSV and Parquet files, each a mapping from field to value, and a row as a document."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeAlias, cast

from stages.collect.find import FoundFile, message_on_one_line
from stages.collect.source_kinds import TOO_LARGE, NamedSource, SourceItem, SourceName, to_utf8
from stages.formats.documents import without_query
from stages.formats.rows import COMPRESSED, NO_VALUE, as_json, field_of, json_object
from stages.runtime.credentials import without_credentials
from stages.runtime.errors import UserError, visible
from stages.runtime.section import Section

RowValues: TypeAlias = Mapping[str, Any] | None
"""Field -> value; None for a row that is too large to be read."""

NO_TEXT = "no text in the row"

UNKNOWN_LICENSE = "NOASSERTION"
"""SPDX's name for a licence that is not known, for one among several."""

ESCAPED_BYTES = 6
r"""The most bytes that a byte of text takes in JSON (`\u0000`)."""

ROWS_AT_A_TIME = 1000

FIELDS_SHOWN = 20


class Fields(Section):
    """Names of the fields (columns) with a row's own facts; null if a row does not say. `meta.path` is nested."""

    source: SourceName | None
    """e.g. `repo_name`: what documents are held out by."""
    path: SourceName | None
    """e.g. `path` or `id`; else the file's path and the row's number."""
    license: SourceName | None
    """e.g. `license`: an SPDX expression, or a list of them, of which all must be allowed."""

    @property
    def named(self) -> list[str]:
        """The fields that are not null."""
        return [field for field in self.model_dump().values() if field]


def rows_as_items(
    source: NamedSource,
    rows: Iterable[tuple[int, RowValues]],
    where: str,
    text: Sequence[str],
    fields: Fields,
    has: str = "",
) -> Iterator[SourceItem]:
    """The rows of a file as items, each with its own facts, or the source's.

    Notes the file if fewer than half of its rows have a text, or if no row has a field that `fields` names. `has`
    describes the columns of the file, if it says them.
    """
    count = texts = 0
    absent = set(fields.named)
    for number, row in rows:
        count += 1
        if row is None:
            yield source.left_out(f"{where}#{number}", TOO_LARGE)
            continue
        has = has or ", ".join(list(map(str, row))[:FIELDS_SHOWN])
        absent -= {field for field in absent if field_of(row, field) is not NO_VALUE}
        item = _item(source, row, f"{where}#{number}", text, fields)
        texts += not item.reason
        yield item
    # Not reached if a limit ends the source early: later rows may have the fields.
    if texts * 2 < count:
        source.notes.append(
            visible(f"{where}: {texts:,} of {count:,} rows have a text in {' or '.join(text)}; fields: {has or 'none'}")
        )
    for field in sorted(absent) if count else ():
        # With a misspelt `license` each row has the source's.
        source.notes.append(visible(f"params.yaml: collect.sources: fields: no row of {where} has `{field}`"))


def _item(source: NamedSource, row: Mapping[str, Any], name: str, text: Sequence[str], fields: Fields) -> SourceItem:
    texts = [value for field in text if isinstance(value := field_of(row, field), str | bytes)]
    content = next((value for value in texts if value.strip()), texts[0] if texts else None)
    own = {fact: _as_text(fact, field_of(row, field)) if field else "" for fact, field in fields.model_dump().items()}
    if content is None:
        return SourceItem(own["source"] or source.name, name, reason=NO_TEXT)
    path = without_credentials(own["path"] or name)
    return SourceItem(own["source"] or source.name, path, source.revision, own["license"] or source.license, content)


def _as_text(fact: str, value: Any) -> str:
    """A fact of a row as text. Of several licences each applies to the document, so all of them must be allowed."""
    if value is None or value is NO_VALUE:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if fact == "license" and isinstance(value, list):
        licenses = list(dict.fromkeys(_as_text(fact, license) for license in value))
        if len(licenses) > 1:
            return " AND ".join(
                f"({license})" if " " in license else license or UNKNOWN_LICENSE for license in licenses
            )
        return "".join(licenses)
    return str(value)


def longest_line(max_document_bytes: int) -> int:
    """Bytes of a line with a document of that size and its other fields; longer lines are never held in memory."""
    return ESCAPED_BYTES * max_document_bytes + 2**16


def lines(stream: BinaryIO, limit: int) -> Iterator[bytes | None]:
    """The lines of a file; None for one of more than `limit` bytes."""
    # `readline` of fsspec's own files knows no limit.
    reader = io.BufferedReader(cast("io.RawIOBase", stream))
    while line := reader.readline(limit):
        if len(line) < limit or line.endswith(b"\n"):
            yield line
        else:
            while line and not line.endswith(b"\n"):
                line = reader.readline(limit)
            yield None


def json_lines(name: str, stream: BinaryIO, limit: int, start: int = 1) -> Iterator[tuple[int, RowValues]]:
    """The objects of JSON lines by their numbers. Raises UserError that names a line that is not a JSON object."""
    for number, line in enumerate(lines(stream, longest_line(limit)), start=start):
        if line is None or line.strip():
            yield number, None if line is None else json_object(line, f"{name}: line {number}")


def json_rows(name: str, stream: BinaryIO, limit: int) -> Iterator[tuple[int, RowValues]]:
    """The objects of a `.json` file: of JSON lines, of one array, or the file as one object. A file with anything else
    is one row without fields."""
    longest = longest_line(limit)
    reader = io.BufferedReader(cast("io.RawIOBase", stream))
    count, first = 1, reader.readline(longest)
    while first and not first.strip():
        count, first = count + 1, reader.readline(longest)
    if isinstance(row := as_json(first), dict):
        yield count, row
        yield from json_lines(name, cast("BinaryIO", reader), limit, start=count + 1)
        return
    value = as_json(first + reader.read())
    for number, row in enumerate(value if isinstance(value, list) else [value], start=1):
        yield number, row if isinstance(row, dict) else {}


LONG_ROW_LINES = 1000
"""Lines of a CSV row above which a stray quote, which takes the rows after it for text, is likelier than a text."""


def csv_rows(
    name: str, stream: BinaryIO, limit: int, delimiter: str, fields: Fields, notes: list[str]
) -> Iterator[tuple[int, RowValues]]:
    """The rows below the heading of a CSV file; `notes` gets rows that a stray quote may have made.

    Raises UserError that names a line that is not CSV or has another number of cells than there are columns, and a
    field of `fields` that the file lacks.
    """
    csv.field_size_limit(longest_line(limit))
    text = io.TextIOWrapper(io.BufferedReader(cast("io.RawIOBase", stream)), "utf-8-sig", newline="")
    reader = csv.reader(text, strict=True, delimiter=delimiter)
    line = 1
    try:
        columns = next(reader, [])
        _require_delimiter(name, delimiter, columns)
        _require_distinct(name, columns)
        _require_columns(name, fields, columns)
        line = reader.line_num + 1
        for number, cells in enumerate(filter(None, reader), start=1):
            if len(cells) != len(columns):
                raise UserError(
                    f"{name}: line {line} has {len(cells)} cells, and there are {len(columns)} columns; quote a cell "
                    "that holds a comma, or correct or remove the line"
                )
            if (lines := reader.line_num - line + 1) > LONG_ROW_LINES:
                notes.append(visible(f"{name}: the row at line {line} has {lines:,} lines: a stray quote?"))
            line = reader.line_num + 1
            yield number, dict(zip(columns, cells, strict=True))
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: line {line} is not UTF-8: try `{to_utf8(error.object)}`") from None
    except csv.Error as error:
        raise UserError(f"{name}: line {line} is not valid CSV ({error})") from None


def _require_delimiter(name: str, delimiter: str, columns: Sequence[str]) -> None:
    other = next((one for one in "\t;|," if one != delimiter and len(columns) == 1 and one in columns[0]), None)
    if other:
        remedy = {"\t": "rename it to .tsv", ",": "rename it to .csv"}.get(other, "write commas between the cells")
        raise UserError(f"{name}: the columns seem to be separated by {other!r}, not by {delimiter!r}: {remedy}")


def _require_distinct(name: str, columns: Sequence[str]) -> None:
    if repeated := [column for column, count in Counter(columns).items() if column and count > 1]:
        raise UserError(f"{name}: several columns are named `{repeated[0]}`; rename them")


def _require_columns(name: str, fields: Fields, columns: Sequence[str]) -> None:
    for field in fields.named:
        if not any(field == column or field.startswith(f"{column}.") for column in columns):
            raise UserError(f"{name}: no column `{field}`; it has {', '.join(columns)}")


def parquet_rows(
    file: FoundFile, stream: BinaryIO, text: Sequence[str], fields: Fields
) -> tuple[Iterator[tuple[int, RowValues]], str]:
    """The rows of a Parquet file with the named columns, and its columns with their types in words. A binary column
    may hold the text, as UTF-8. Raises UserError if the file is not Parquet or lacks a field of `fields`."""
    import pyarrow as pa  # slow, and the parameters are checked without it
    import pyarrow.parquet as pq

    name, broken = file.name, (pa.ArrowException, OSError, UnicodeError)
    packed = without_query(name).lower().endswith(COMPRESSED)
    try:
        table = pq.ParquetFile(io.BytesIO(stream.read()) if packed else stream, page_checksum_verification=True)
    except broken as error:
        raise UserError(f"{name}: no readable Parquet file ({message_on_one_line(error)})") from None
    columns = table.schema_arrow.names
    _require_columns(name, fields, columns)
    asked = [*text, *fields.named]
    wanted = [one for one in columns if any(field == one or field.startswith(f"{one}.") for field in asked)]
    _require_distinct(name, wanted)

    def rows() -> Iterator[tuple[int, RowValues]]:
        number = 0
        try:
            for batch in table.iter_batches(ROWS_AT_A_TIME, columns=wanted):
                for row in batch.to_pylist() if wanted else [{}] * len(batch):
                    number += 1
                    yield number, row
        except broken as error:
            raise UserError(f"{name}: damaged after row {number} ({message_on_one_line(error)})") from None

    return rows(), ", ".join(f"{one.name}: {one.type}" for one in list(table.schema_arrow)[:FIELDS_SHOWN])
