"""Rows, one document each: JSON lines, CSV, Parquet, data sets of the Hub."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from stages.collect.params import Csv, Hub, Jsonl, Parquet
from stages.collect.raw import LeftOut, Raw
from stages.collect.sources.opened import one_line, opened
from stages.collect.sources.places import find
from stages.runtime.entry import UserError

ROWS_AT_A_TIME = 1000

ESCAPED_BYTES = 6
r"""Bytes that a byte of text takes at most in JSON (`\u0000`)."""


def read_jsonl(source: Jsonl, max_document_bytes: int) -> Iterator[Raw | LeftOut]:
    """Each line as one document. Raises UserError that names a line that is no JSON object with the text field."""
    for place in find(source.globs):
        with opened(place) as file:
            for number, line in enumerate(_lines(file, longest_line(max_document_bytes)), start=1):
                if line is None:
                    yield LeftOut(source.name, f"{place.name}#{number}", "larger than max_document_bytes")
                elif line.strip():
                    yield as_raw(source, _json_object(place.name, number, line), f"{place.name}#{number}")


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
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}: line {number} is not valid JSON ({error}); mend or remove it") from None
    if not isinstance(row, dict):
        raise UserError(f"{name}: line {number} is no JSON object but {type(row).__name__}")
    return row


def read_csv(source: Csv, max_document_bytes: int) -> Iterator[Raw | LeftOut]:
    """Each row as one document. Raises UserError that names a line that is no CSV."""
    limit = longest_line(max_document_bytes)
    csv.field_size_limit(limit)
    for place in find(source.globs):
        with opened(place) as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            rows = csv.DictReader(_bounded_lines(text, limit), strict=True)
            try:
                for number, row in enumerate(rows, start=1):
                    yield as_raw(source, row, f"{place.name}#{number}")
            except (csv.Error, UnicodeError) as error:
                raise UserError(f"{place.name}: line {rows.line_num + 1} is not valid CSV ({error})") from None


def _bounded_lines(text: io.TextIOWrapper, limit: int) -> Iterator[str]:
    while line := text.readline(limit):
        if len(line) == limit and not line.endswith(("\r", "\n")):
            raise csv.Error(f"longer than {limit:,} characters; raise collect.max_document_bytes or mend it")
        yield line


def read_parquet(source: Parquet) -> Iterator[Raw | LeftOut]:
    """Each row as one document. Raises UserError if a file is no Parquet or lacks a named column."""
    wanted = [name for name in (source.text, *source.fields.model_dump().values()) if name is not None]
    for place in find(source.globs):
        with opened(place) as handle:
            try:
                file = pq.ParquetFile(handle)
            except (pa.ArrowException, OSError, UnicodeError) as error:
                raise UserError(f"{place.name}: no readable Parquet file ({one_line(error)})") from None
            if missing := [name for name in wanted if name not in file.schema_arrow.names]:
                raise UserError(f"{place.name}: no column `{missing[0]}`; it has {', '.join(file.schema_arrow.names)}")
            yield from _parquet_rows(source, file, wanted, place.name)


def _parquet_rows(source: Parquet, file: pq.ParquetFile, wanted: list[str], name: str) -> Iterator[Raw | LeftOut]:
    number = 0
    try:
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=wanted):
            for row in batch.to_pylist():
                number += 1
                yield as_raw(source, row, f"{name}#{number}")
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise UserError(f"{name}: damaged after row {number} ({one_line(error)})") from None


def read_hub(source: Hub) -> Iterator[Raw | LeftOut]:
    """Each row of a data set as one document, streamed. Raises UserError if it cannot be reached or has no split."""
    if not source.revision and not Path(source.repository).is_dir():
        raise UserError(
            f"collect.sources: data set `{source.repository}` has no revision; name a commit, so that it is the same "
            "tomorrow"
        )
    # A second of imports: only where a data set is read.
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        rows = load_dataset(
            source.repository,
            source.configuration,
            split=source.split,
            revision=source.revision or None,
            streaming=True,
        )
        for number, row in enumerate(rows, start=1):
            yield as_raw(source, row, f"{source.repository}#{number}")
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"collect.sources: data set `{source.repository}` cannot be read ({reason}); without a network download it "
            "where there is one (`hf download --repo-type dataset`) and name its files as a source of kind `parquet`"
        ) from None


def as_raw(source: Jsonl | Csv | Parquet | Hub, row: dict[str, Any], place: str) -> Raw | LeftOut:
    """A row as raw text with its own facts, or the source's. Raises UserError if it has no such field."""
    if source.text not in row:
        raise UserError(f"{place}: no field `{source.text}`; it has {', '.join(sorted(map(str, row)))}")
    own = {name: str(row.get(field) or "") for name, field in source.fields.model_dump().items() if field is not None}
    name = own.get("source") or source.name
    content = row[source.text]
    if not isinstance(content, str):
        return LeftOut(name, place, "no text in the row")
    return Raw(name, source.revision, own.get("path") or place, own.get("license") or source.license, content)
