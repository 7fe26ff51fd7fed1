"""Rows of tables and of JSON lines: which files hold them, and the value of a field."""

import re
from collections.abc import Mapping
from typing import Any

from stages.formats.reports import parse_json

COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
"""Endings of the compressions that are read."""

MISSING: Any = object()
"""The value of a field that a row does not have."""


def ending(name: str) -> str:
    """The ending of a file's name in lower case, without that of a compression: `.jsonl` of `A.JSONL.gz`."""
    name = name.lower()
    for compression in COMPRESSED:
        name = name.removesuffix(compression)
    stem, dot, last = name.rpartition(".")
    return f".{last}" if dot and stem and "/" not in last else ""


_ARRAY_OF_OBJECTS = re.compile(rb'\s*\[\s*\{\s*"')


def looks_like_rows(content: bytes) -> bool:
    """True if a text begins as an array of JSON objects, or with two lines of JSON objects that have the same keys."""
    content = content.removeprefix(b"\xef\xbb\xbf")
    if _ARRAY_OF_OBJECTS.match(content):
        return True
    if not content.lstrip().startswith(b"{"):
        return False
    first, _, rest = content.lstrip().partition(b"\n")
    one, other = (as_json(line) for line in (first, rest.lstrip().partition(b"\n")[0]))
    return isinstance(one, dict) and isinstance(other, dict) and bool(one) and one.keys() == other.keys()


def as_json(content: bytes) -> Any:
    """JSON that people wrote; None if it is not valid."""
    try:
        return parse_json(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None


def field_of(values: Mapping[str, Any], name: str) -> Any:
    """The value of a field by its name or by the names that lead to it (`meta.text`).

    Returns `MISSING` if the row does not have it, and None if what it is nested in is null.
    """
    if name in values:
        return values[name]
    outer, dot, inner = name.partition(".")
    # A name on the way may have dots too: `a.b.c` may be `c` in `a.b`.
    while dot:
        if outer in values:
            nested = values[outer]
            return field_of(nested, inner) if isinstance(nested, Mapping) else None if nested is None else MISSING
        part, dot, inner = inner.partition(".")
        outer = f"{outer}.{part}"
    return MISSING
