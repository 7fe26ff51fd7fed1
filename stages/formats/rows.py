"""Rows that people write, as tables or JSON lines: which files hold them, how they are read, what a field holds."""

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.formats.reports import Model, parse
from stages.runtime.atomic import require_here
from stages.runtime.errors import UserError

COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
"""Endings of the compressions that are read."""

NO_VALUE: Any = object()
"""The value of a field that a row does not have."""


def ending(name: str) -> str:
    """The lower-case extension of a file's name, without that of a compression: `.jsonl` for `A.JSONL.gz`."""
    name = name.lower()
    for compression in COMPRESSED:
        name = name.removesuffix(compression)
    stem, dot, last = name.rpartition(".")
    return f".{last}" if dot and stem and "/" not in last else ""


HEAD_BYTES = 2**20
"""How far a text is looked at to tell whether it is JSON."""

_ARRAY_OF_OBJECTS = re.compile(r'\[\s*\{\s*"')
_BEGINS = re.compile(r'\{\s*"[^"\n]*"\s*:\s*(?:["{\[\d-]|true|false|null)|\[\s*["{\[]')


def looks_like_rows(content: bytes) -> bool:
    """True if a text is JSON in whole, begins as an array of objects, or begins with a JSON value and another one after
    it. Only the first `HEAD_BYTES` are looked at: a first value that is longer counts if it begins as JSON."""
    head = content[:HEAD_BYTES].decode("utf-8", "ignore").removeprefix("\ufeff").strip()
    if not head.startswith(("{", "[")):
        return False
    try:
        _, end = json.JSONDecoder().raw_decode(head)
    except (ValueError, RecursionError):
        return bool((_BEGINS if len(content) >= HEAD_BYTES else _ARRAY_OF_OBJECTS).match(head))
    rest = head[end:].lstrip()
    return not rest or bool(_BEGINS.match(rest))


def read_json_lines(path: Path, model: type[Model], remedy: str) -> list[Model]:
    """A file with a line of JSON for each value. Raises UserError that names the first line that is wrong."""
    return [parse(line, model, f"{path}: line {number}", remedy) for number, line in read_lines(path, f"; {remedy}")]


def read_lines(path: Path, remedy: str = "") -> list[tuple[int, str]]:
    """The lines of a file, also gzipped (`.gz`), that are not blank, with their numbers from 1.

    Raises UserError, which ends with `remedy`, if it cannot be read.
    """
    require_here(path)
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix.lower() == ".gz" else content).decode("utf-8")
    except UnicodeError:
        advice = "convert it, or unpack it if it is compressed (only .gz is read)"
        raise UserError(f"{path}: is not UTF-8 text: {advice}{remedy}") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(f"{path}: cannot be read ({reason}){remedy}") from None
    # Not splitlines(): only a newline ends a line of JSON, and a text may hold other separators as they are.
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def json_object(line: str | bytes, where: str) -> dict[str, Any]:
    """The object in a line that people wrote. Raises UserError that begins with `where` if it is not one."""
    try:
        row = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid JSON ({error}); correct or remove it") from None
    if not isinstance(row, dict):
        raise UserError(f"{where} is not a JSON object but {type(row).__name__}; correct or remove it")
    return row


def parse_json(text: str | bytes) -> Any:
    """JSON that people wrote. Raises ValueError also if a key is there twice: only one of its values would count."""
    return json.loads(text, object_pairs_hook=_keys_once)


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key `{repeated}` is there twice")
    return values


def as_json(content: bytes) -> Any:
    """JSON that people wrote; None if it is not valid."""
    try:
        return parse_json(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None


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
