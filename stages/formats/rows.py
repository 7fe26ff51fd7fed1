"""Rows that people write, as JSON lines, JSON, CSV or Parquet: how they are read, and what a field of a row holds."""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from stages.formats.opening import ROWS, compression, ending, opened_file, to_utf8
from stages.formats.reports import Model, parse
from stages.runtime.errors import UserError, message_on_one_line

RowValues: TypeAlias = Mapping[str, Any] | None
"""Field -> value; None for a row that is too large to be read."""

NO_VALUE: Any = object()
"""The value of a field that a row does not have."""

UNLIMITED = 2**40
"""Bytes of a document, where none is too large."""

ESCAPED_BYTES = 6
r"""The most bytes that a byte of text takes in JSON (`\u0000`)."""

MAX_ARRAY_BYTES = 2**28
"""Of a `.json` file that is not JSON lines: all of it is held in memory, several times."""

ROWS_AT_A_TIME = 1000


def numbered_rows(
    name: str, stream: BinaryIO, columns: Sequence[str] = (), required: Sequence[str] = (), limit: int = UNLIMITED
) -> Iterator[tuple[int, RowValues]]:
    """The rows of a file, whose name says what it holds, each with its number: of JSON lines the line, else the row.

    Of a Parquet file only `columns` are read, if any are given, and its other values are null. A table must have the
    columns `required`. A row that is too large for a document of `limit` bytes is None. Raises UserError that names a
    line that is wrong.
    """
    match ending(name):
        case ".parquet":
            yield from _parquet_rows(name, stream, columns, required)
        case ".jsonl":
            yield from _json_lines(name, stream, limit)
        case ".json":
            yield from _json_rows(name, stream, limit)
        case end:
            delimiter = "\t" if end == ".tsv" else ","
            yield from _csv_rows(name, stream, delimiter, required, limit)


def read_row_file(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a file of this machine with the name of each, `FILE#NUMBER`. Raises UserError if it has no rows."""
    if ending(path.name) not in ROWS:
        raise UserError(f"{path}: rows are read from {', '.join(ROWS)}: rename or convert it")
    with opened_file(path) as stream:
        yield from ((f"{path}#{number}", row or {}) for number, row in numbered_rows(str(path), stream))


def read_json_lines(path: Path, model: type[Model], remedy: str) -> list[Model]:
    """A file with a line of JSON for each value. Raises UserError that names the first line that is wrong."""
    with opened_file(path, remedy) as lines:
        numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    return [parse(line, model, f"{path}: line {number}", remedy) for number, line in numbered]


def _longest_line(limit: int) -> int:
    """Bytes of a line with a document of that size and its other fields; longer lines are never held in memory."""
    return ESCAPED_BYTES * limit + 2**16


def _lines(stream: BinaryIO, limit: int) -> Iterator[bytes | None]:
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


def _json_lines(name: str, stream: BinaryIO, limit: int, start: int = 1) -> Iterator[tuple[int, RowValues]]:
    for number, line in enumerate(_lines(stream, _longest_line(limit)), start=start):
        if line is None or line.strip():
            yield number, None if line is None else _json_object(line, f"{name}: line {number}")


def _json_rows(name: str, stream: BinaryIO, limit: int) -> Iterator[tuple[int, RowValues]]:
    """The objects of a `.json` file: of JSON lines, of one array, or the file as one object. A file with anything else
    is one row without fields."""
    longest = _longest_line(limit)
    reader = io.BufferedReader(cast("io.RawIOBase", stream))
    count, first = 1, reader.readline(longest)
    while first and not first.strip():
        count, first = count + 1, reader.readline(longest)
    if isinstance(row := _as_json(first), dict):
        yield count, row
        yield from _json_lines(name, cast("BinaryIO", reader), limit, start=count + 1)
        return
    content = first + reader.read(MAX_ARRAY_BYTES)
    if len(content) > MAX_ARRAY_BYTES:
        raise UserError(
            f"{name}: one JSON value of more than {MAX_ARRAY_BYTES >> 20} MB: make it JSON lines (`jq -c '.[]'`)"
        )
    value = _as_json(content)
    for number, row in enumerate(value if isinstance(value, list) else [value], start=1):
        yield number, row if isinstance(row, dict) else {}


def _json_object(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = _parse_json(line)
    except UnicodeDecodeError:
        raise UserError(f"{where} is not UTF-8: try `{to_utf8(line)}`") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid JSON ({error}); correct or remove it") from None
    if not isinstance(row, dict):
        raise UserError(f"{where} is not a JSON object but {type(row).__name__}; correct or remove it")
    return row


def _as_json(content: bytes) -> Any:
    """JSON that people wrote; None if it is not valid."""
    try:
        return _parse_json(content)
    except (ValueError, RecursionError):
        return None


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raise ValueError if a key occurs twice: only one of its values would count."""
    values = dict(pairs)
    if len(values) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key `{repeated}` occurs twice")
    return values


_parse_json = partial(json.loads, object_pairs_hook=_keys_once)


def _csv_rows(
    name: str, stream: BinaryIO, delimiter: str, required: Sequence[str], limit: int
) -> Iterator[tuple[int, RowValues]]:
    """The rows below the heading of a CSV file. Raises UserError that names a line that is not CSV or has another
    number of cells than there are columns."""
    csv.field_size_limit(_longest_line(limit))
    text = io.TextIOWrapper(io.BufferedReader(cast("io.RawIOBase", stream)), "utf-8-sig", newline="")
    reader = csv.reader(text, strict=True, delimiter=delimiter)
    line = 1
    try:
        columns = next(reader, [])
        _require_delimiter(name, delimiter, columns)
        _require_distinct(name, columns)
        _require_columns(name, required, columns)
        line = reader.line_num + 1
        for number, cells in enumerate(filter(None, reader), start=1):
            if len(cells) != len(columns):
                raise UserError(
                    f"{name}: line {line} has {len(cells)} cells, and there are {len(columns)} columns; quote a cell "
                    "that holds a comma, or correct or remove the line"
                )
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


def _require_columns(name: str, required: Sequence[str], columns: Sequence[str]) -> None:
    for field in required:
        if not any(_is_within(field, column) for column in columns):
            raise UserError(f"{name}: no column `{field}`; it has {', '.join(columns)}")


def _is_within(field: str, column: str) -> bool:
    return field == column or field.startswith(f"{column}.")


def _parquet_rows(
    name: str, stream: BinaryIO, asked: Sequence[str], required: Sequence[str]
) -> Iterator[tuple[int, RowValues]]:
    import pyarrow as pa  # slow, and the parameters are checked without it
    import pyarrow.parquet as pq

    broken = (pa.ArrowException, OSError, UnicodeError)
    try:
        file = io.BytesIO(stream.read()) if compression(name) else stream
        table = pq.ParquetFile(file, page_checksum_verification=True)
    except broken as error:
        raise UserError(f"{name}: not a readable Parquet file ({message_on_one_line(error)})") from None
    columns = table.schema_arrow.names
    _require_columns(name, required, columns)
    wanted = [column for column in columns if not asked or any(_is_within(field, column) for field in asked)]
    _require_distinct(name, wanted)
    number, not_read = 0, dict.fromkeys(columns)
    try:
        for batch in table.iter_batches(ROWS_AT_A_TIME, columns=wanted):
            for row in batch.to_pylist() if wanted else [{}] * len(batch):
                number += 1
                yield number, not_read | row
    except broken as error:
        raise UserError(f"{name}: damaged after row {number} ({message_on_one_line(error)})") from None


def field_of(values: Mapping[str, Any], name: str) -> Any:
    """The value of a field by its name or by the names that lead to it (`meta.text`).

    Returns `NO_VALUE` if the row does not have it, and None if what it is nested in is null.
    """
    if name in values:
        return values[name]
    outer, dot, inner = name.partition(".")
    # A name on the way may have dots too: `a.b.c` may be `c` in `a.b`.
    while dot:
        if outer in values:
            nested = values[outer]
            return field_of(nested, inner) if isinstance(nested, Mapping) else None if nested is None else NO_VALUE
        part, dot, inner = inner.partition(".")
        outer = f"{outer}.{part}"
    return NO_VALUE
