"""Nested values by dotted keys: `train.optimizer.name`."""

from collections.abc import Iterator, Mapping
from typing import Any


def value_at(values: Any, key: str) -> Any:
    """What lies at a dotted key; None where it leads nowhere."""
    for part in key.split("."):
        if not isinstance(values, Mapping):
            return None
        values = values.get(part)
    return values


def differences(key: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """The leaves that differ between two values, each with its dotted key, the old and the new value.

    `key` is that of the two values themselves, empty at the top. A list is a leaf.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted({*old, *new}):
            yield from differences(f"{key}.{name}" if key else str(name), old.get(name), new.get(name))
    elif old != new:
        yield key, old, new


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves by their dotted keys. A list is a leaf."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
