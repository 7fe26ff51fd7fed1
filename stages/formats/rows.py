"""Rows of tables and of JSON lines: which file names hold them, and the value of a field."""

from collections.abc import Mapping
from typing import Any

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
