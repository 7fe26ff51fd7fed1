"""Rows, one document each: JSON lines, CSV, Parquet, data sets of the Hub."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from stages.collect.params import Csv, Hub, Jsonl, Parquet
from stages.collect.raw import TOO_LARGE, LeftOut, RawDocument
from stages.collect.sources.located import find_visible, one_line
from stages.collect.sources.opened import decompressed, opened
from stages.formats.reports import parse_json
from stages.runtime.credentials import without_credentials
from stages.runtime.entry import UserError
from stages.runtime.hub import data_set_error

ROWS_AT_A_TIME = 1000

ESCAPED_BYTES = 6
r"""Bytes that a byte of text takes at most in JSON (`\u0000`)."""


def read_jsonl(source: Jsonl, max_document_bytes: int) -> Iterator[RawDocument | LeftOut]:
    """Each line as one document. Raises UserError that names a line that is not a JSON object with the text field."""
    for file in find_visible(source.globs):
        with decompressed(file) as stream:
            for number, line in enumerate(_lines(stream, longest_line(max_document_bytes)), start=1):
                row_name = f"{file.name}#{number}"
                if line is None:
                    yield LeftOut(source.name, row_name, TOO_LARGE)
                elif line.strip():
                    yield as_raw(source, _json_object(file.name, number, line), row_name)


def longest_line(max_document_bytes: int) -> int:
    """Bytes of a line with a document of that size and its other fields; longer ones are never held in memory."""
    return ESCAPED_BYTES * max_document_bytes + 2**16


def _lines(file: BinaryIO, limit: int) -> Iterator[bytes | None]:
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


def _json_object(name: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}: line {number} is not valid JSON ({error}); correct or remove it") from None
    if not isinstance(row, dict):
        raise UserError(f"{name}: line {number} is not a JSON object but {type(row).__name__}")
    return row


def read_csv(source: Csv, max_document_bytes: int) -> Iterator[RawDocument | LeftOut]:
    """Each row as one document. Raises UserError that names a line that is not CSV, or that has not a cell a column."""
    limit = longest_line(max_document_bytes)
    csv.field_size_limit(limit)
    for file in find_visible(source.globs):
        with decompressed(file) as stream:
            for number, row in enumerate(_csv_rows(file.name, stream, limit), start=1):
                yield as_raw(source, row, f"{file.name}#{number}")


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
    for line in _lines(stream, limit):
        if line is None:
            raise csv.Error(f"longer than {limit:,} bytes; raise collect.max_document_bytes or correct it")
        # A carriage return alone ends a line too.
        yield from re.split(r"(?<=\r)(?!\n)", line.decode(encoding))
        encoding = "utf-8"


def read_parquet(source: Parquet) -> Iterator[RawDocument | LeftOut]:
    """Each row as one document. Raises UserError if a file is not Parquet or lacks a named column, or has it twice.

    Pages that carry a checksum are compared with it.
    """
    wanted = [name for name in (source.text, *source.fields.model_dump().values()) if name is not None]
    for located in find_visible(source.globs):
        with opened(located) as stream:
            try:
                file = pq.ParquetFile(stream, page_checksum_verification=True)
            except (pa.ArrowException, OSError, UnicodeError) as error:
                raise UserError(f"{located.name}: no readable Parquet file ({one_line(error)})") from None
            columns = file.schema_arrow.names
            for name in wanted:
                if columns.count(name) > 1:
                    raise UserError(f"{located.name}: several columns are named `{name}`; rename them")
                if name not in columns:
                    raise UserError(f"{located.name}: no column `{name}`; it has {', '.join(columns)}")
            yield from _parquet_rows(source, file, wanted, located.name)


def _parquet_rows(
    source: Parquet, file: pq.ParquetFile, wanted: list[str], name: str
) -> Iterator[RawDocument | LeftOut]:
    number = 0
    try:
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=wanted):
            for row in batch.to_pylist():
                number += 1
                yield as_raw(source, row, f"{name}#{number}")
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise UserError(f"{name}: damaged after row {number} ({one_line(error)})") from None


def read_hub(source: Hub) -> Iterator[RawDocument | LeftOut]:
    """Each row of a data set as one document, streamed.

    Raises UnavailableError if the Hub does not answer, UserError if it has no such data set, revision or split, or does
    not give it to us.
    """
    # A second of imports: only where a data set is read.
    from datasets import load_dataset_builder
    from datasets.exceptions import DatasetsError
    from datasets.packaged_modules.parquet.parquet import ParquetConfig
    from httpx2 import HTTPError
    from pyarrow.dataset import ParquetFragmentScanOptions

    try:
        # As `load_dataset(..., streaming=True)` does, and with the checksums of Parquet's pages.
        builder = load_dataset_builder(source.repository, source.configuration, revision=source.revision or None)
        if isinstance(builder.config, ParquetConfig):
            builder.config.fragment_scan_options = ParquetFragmentScanOptions(page_checksum_verification=True)
        rows = builder.as_streaming_dataset(split=source.split)
        for number, row in enumerate(rows, start=1):
            yield as_raw(source, row, f"{source.repository}#{number}")
    except (DatasetsError, OSError, ValueError, RuntimeError, HTTPError) as error:
        raise data_set_error(
            f"collect.sources: data set `{source.repository}` cannot be read ({one_line(error)})",
            error,
            "correct its name, revision or split, or download it where there is a network "
            "(`hf download --repo-type dataset`) and name its files as a source of kind `parquet`",
        ) from None


def as_raw(source: Jsonl | Csv | Parquet | Hub, row: dict[str, Any], row_name: str) -> RawDocument | LeftOut:
    """A row as a raw document with its own facts, or the source's. Raises UserError if it has no such field."""
    if source.text not in row:
        raise UserError(f"{row_name}: no field `{source.text}`; it has {', '.join(sorted(map(str, row)))}")
    own = {name: str(row.get(field) or "") for name, field in source.fields.model_dump().items() if field is not None}
    name = own.get("source") or source.name
    content = row[source.text]
    if not isinstance(content, str):
        return LeftOut(name, row_name, "no text in the row")
    return RawDocument(
        name,
        source.revision,
        without_credentials(own.get("path") or row_name),
        own.get("license") or source.license,
        content,
    )
