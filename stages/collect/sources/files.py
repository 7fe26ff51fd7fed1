"""Local files by glob: text files, rows of JSON lines and of Parquet."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stages.collect.params import Fields, Files, Jsonl, Origin, Parquet
from stages.collect.raw import LeftOut, Raw
from stages.formats.entry import UserError

ROWS_AT_A_TIME = 1000


def matching_files(globs: Sequence[str]) -> list[Path]:
    """The files that the patterns match, each once, in the order of their paths; a folder gives all below it.

    Links to folders are not followed, so a loop of links ends. Raises UserError for a pattern that matches nothing.
    """
    found: set[Path] = set()
    for pattern in globs:
        matches = _matches(Path(pattern))
        if not matches:
            raise UserError(
                f"collect.sources: `{pattern}` matches no file; correct the path (relative to {Path.cwd()})"
            )
        for match in matches:
            found.update(_files_below(match) if match.is_dir() else [match])
    return sorted(found, key=lambda path: path.as_posix())


def _matches(pattern: Path) -> list[Path]:
    relative = pattern.relative_to(pattern.anchor)
    found = Path(pattern.anchor).glob(relative.as_posix()) if relative.parts else [pattern]
    named = set(pattern.parts)
    return [path for path in found if not any(part.startswith(".") and part not in named for part in path.parts)]


def _files_below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place) / name for name in files if not name.startswith("."))


def read_files(source: Files) -> Iterator[Raw | LeftOut]:
    """Each file as one document."""
    for path in matching_files(source.globs):
        if not path.is_file():
            yield LeftOut(source.name, path.as_posix(), "no regular file")
            continue
        try:
            yield Raw(source.name, source.revision, path.as_posix(), source.license, path.read_bytes())
        except OSError as error:
            yield LeftOut(source.name, path.as_posix(), f"unreadable: {error.strerror}")


def read_jsonl(source: Jsonl) -> Iterator[Raw | LeftOut]:
    """Each line as one document. Raises UserError that names a line that is no JSON object with the text field."""
    for path in matching_files(source.globs):
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _row(source, source.fields, _json_object(path, number, line), source.text, path, number)


def _json_object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{path}: line {number} is not valid JSON ({error}); mend or remove it") from None
    if not isinstance(row, dict):
        raise UserError(f"{path}: line {number} is no JSON object but {type(row).__name__}")
    return row


def read_parquet(source: Parquet) -> Iterator[Raw | LeftOut]:
    """Each row as one document. Raises UserError if a file is no Parquet or lacks a named column."""
    wanted = [name for name in (source.text, *source.fields.model_dump().values()) if name is not None]
    for path in matching_files(source.globs):
        try:
            file = pq.ParquetFile(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{path}: no readable Parquet file ({error})") from None
        with file:
            for name in wanted:
                if name not in file.schema_arrow.names:
                    raise UserError(f"{path}: no column `{name}`; it has {', '.join(file.schema_arrow.names)}")
            number = 0
            for batch in file.iter_batches(ROWS_AT_A_TIME, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield _row(source, source.fields, row, source.text, path, number)


def _row(origin: Origin, fields: Fields, row: dict[str, Any], text: str, path: Path, number: int) -> Raw | LeftOut:
    place = f"{path.as_posix()}#{number}"
    if text not in row:
        raise UserError(f"{path}: row {number} has no field `{text}`; it has {', '.join(sorted(row))}")
    content = row[text]
    own = {name: str(row.get(field) or "") for name, field in fields.model_dump().items() if field is not None}
    source = own.get("source") or origin.name
    if not isinstance(content, str):
        return LeftOut(source, place, "no text in the row")
    return Raw(source, origin.revision, own.get("path") or place, own.get("license") or origin.license, content)
