"""Nested parameters as flat rows, and names of the Hub."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

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


def between(interval: tuple[float, float] | None) -> str:
    """An interval in words; nothing where there is none."""
    return "" if interval is None else "{:g} to {:g}".format(*interval)
