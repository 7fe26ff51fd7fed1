"""What `parrotflow published` prints for people."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from stages.publish.card.values import between, flat, shown
from stages.publish.registry.comparison import Changes, Comparison
from stages.publish.registry.listing import Listed, Shown

HEADING = ("", "revision", "published", "bits per byte", "95 % interval", "parameters", "size", "own", "run", "commit")


Parts: TypeAlias = Mapping[str, Sequence[Sequence[str]]]
"""Title -> rows."""


def listing(rows: Iterable[Listed]) -> str:
    """A line for each revision; `*` is the one that main leads to."""
    lines = [
        (
            "*" if row.main else "",
            row.revision,
            f"{row.published:%Y-%m-%d %H:%M}" if row.published else "",
            number(row.bits_per_byte),
            between(row.interval_95),
            number(row.parameters),
            size(row.bytes),
            size(row.bytes_of_its_own),
            row.run or "",
            commit(row),
        )
        for row in rows
    ]
    return aligned([HEADING, *lines]) if lines else "nothing is published"


def revision(found: Shown) -> str:
    """Everything about a revision, by section."""
    facts = [
        ("revision", found.revision + (" (main)" if found.main else "")),
        ("in", found.location),
        ("published", f"{found.published:%Y-%m-%d %H:%M}" if found.published else "unknown"),
        ("bits per byte", f"{number(found.bits_per_byte)}  {between(found.interval_95)}".strip()),
        ("parameters", number(found.parameters)),
        ("size", f"{size(found.bytes)}, of its own {size(found.bytes_of_its_own)}"),
        ("run", found.run or "not recorded"),
        ("commit", f"{commit(found) or 'none'} {found.origin or ''}".strip()),
        *([("changed", ", ".join(found.changed))] if found.changed else []),
        *(("main", move) for move in found.moves),
    ]
    sessions = found.execution.sessions if found.execution else []
    execution = [
        (
            f"steps {session.first_step} to {session.last_step}",
            f"{session.device}, {session.processes} x {session.threads_per_process} threads, {session.precision}"
            f"{', compiled' if session.compiled else ''}",
        )
        for session in sessions
    ]
    parts: Parts = {
        "": facts,
        "exported steps": [(str(step), where) for step, where in found.steps.items()],
        "training": execution,
        "files": [(path, size(bytes_)) for path, bytes_ in found.files.items()],
        "libraries": sorted(found.versions.items()),
        "parameters": [(name, shown(value)) for name, value in flat(found.params)],
    }
    return sections(parts)


def comparison(found: Comparison) -> str:
    """What differs, by section; a metric with its difference."""
    one, other = found.revisions
    paired = []
    if found.paired is not None and found.paired.interval_95 != (0, 0):  # else of the same weights
        low, high = found.paired.interval_95
        paired = [
            ("difference", f"{found.paired.difference:+.6g}", f"95 % interval {low:+.6g} to {high:+.6g}"),
            ("better", f"{found.paired.better_share:.0%}", f"of {found.paired.documents} documents"),
        ]
    parts: Parts = {
        f"{one} -> {other}": [],
        "parameters": changed(found.params),
        "data": changed(found.data),
        "code": changed(found.code),
        "libraries": changed(found.versions),
        "execution of the training": changed(found.execution),
        "metrics": [(*row, difference(*found.metrics[row[0]])) for row in changed(found.metrics)],
        "bits per byte, paired by document": paired,
        "files": [(path, file_change(*values)) for path, values in found.files.items()],
    }
    text = sections({title: rows for title, rows in parts.items() if rows or title.startswith(one)})
    return text if any(rows for rows in parts.values()) else f"{text}\nnothing differs"


def changed(values: Changes) -> list[tuple[str, str, str]]:
    """Name, old and new value."""
    return [(name, brief(one), f"-> {brief(other)}") for name, (one, other) in values.items()]


def brief(value: Any) -> str:
    """A value on one line."""
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else shown(value)


def difference(one: Any, other: Any) -> str:
    """Of two numbers."""
    return "" if one is None or other is None else f"{other - one:+.6g}"


def file_change(one: str | None, other: str | None) -> str:
    """In a word."""
    return "added" if one is None else "removed" if other is None else "changed"


def sections(parts: Parts) -> str:
    """Each title above its rows."""
    texts: list[str] = []
    for title, rows in parts.items():
        if title and (rows or "->" in title):
            texts.append(f"\n{title}" if texts else title)
        if rows:
            texts.append(aligned(rows, "  " if title else ""))
    return "\n".join(texts)


def aligned(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Columns as wide as their widest cell; a column without any cell is left out."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(indent + line.rstrip() for line in lines)


def commit(row: Listed) -> str:
    """The first digits, and whether files differed from it."""
    return f"{row.commit[:12]}{' dirty' if row.dirty else ''}" if row.commit else ""


def number(value: float | int | None) -> str:
    """As a reader expects it."""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def size(count: int) -> str:
    """Bytes in a readable unit."""
    for unit, bytes_ in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}"
    return f"{count} bytes"
