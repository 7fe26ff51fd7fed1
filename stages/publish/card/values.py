"""Nested parameters as flat rows, and names of the Hub."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

FEWEST = 10
"""Documents, or problems: a bootstrap over fewer covers far less than its 95 %, so no interval is shown."""

HUB_COMMIT = re.compile(r"(?P<repository>[\w.-]+(/[\w.-]+)?)@(?P<commit>[0-9a-f]{40})")
"""A model or data set of the Hub, as params.yaml names it."""


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of each leaf, in the given order."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def shown(value: Any) -> str:
    """A value as a reader expects it: numbers with separators, lists with commas, `none` for null."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "none"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def between(interval: tuple[float, float] | None, documents: int, digits: str = "g") -> str:
    """A bootstrap interval over so many documents in words; empty where there is none."""
    if interval is None:
        return ""
    if documents < FEWEST:
        return f"too few ({documents})"
    return " to ".join(format(end, digits) for end in interval)


def named(metric: str, interval: tuple[float, float] | None, documents: int, digits: str = "g") -> str:
    """A metric's name with its interval, for which the Hub's model-index has no field."""
    if interval is None:
        return metric
    if documents < FEWEST:
        return f"{metric}, too few for an interval ({documents})"
    return f"{metric}, 95 % interval {between(interval, documents, digits)}"
