"""Plain data as JSON: what may cross between the process of the tests and the process of a candidate.

Values of exactly Python's own types arrive on the other side, and nothing else does: a subclass of a builtin type
arrives as the type it extends, without its methods (so an `__eq__` that is always true stays behind), and any other
object stays where it is while a reference to it crosses. Numbers, strings and lists are JSON's own; every other type
is an object with one key: `{"tuple": [1, 2]}`. Both sides decode with this module, and decoding runs nothing of what is
decoded. Of the standard library cross the values that programs return most: ranges, fractions, decimals, dates,
deques, and its kinds of dict.
"""

import builtins
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

PLAIN_INTEGER_BITS = 64
"""Larger integers cross in base 16: Python limits the length of decimal ones."""


Parts = list[Any]

LIBRARY: dict[type, tuple[Callable[[Any], Parts], type, Callable[..., Any]]] = {
    range: (lambda value: [value.start, value.stop, value.step], int, range),
    Fraction: (lambda value: [value.numerator, value.denominator], int, Fraction),
    Decimal: (lambda value: [str(value)], str, Decimal),
    date: (lambda value: [value.isoformat()], str, date.fromisoformat),
    datetime: (lambda value: [value.isoformat()], str, datetime.fromisoformat),
    time: (lambda value: [value.isoformat()], str, time.fromisoformat),
    timedelta: (lambda value: [value.days, value.seconds, value.microseconds], int, timedelta),
    deque: (lambda value: [list(value), *([] if value.maxlen is None else [value.maxlen])], list, deque),
    OrderedDict: (lambda value: [dict(value)], dict, OrderedDict),
    Counter: (lambda value: [dict(value)], dict, Counter),
    defaultdict: (
        lambda value: [dict(value), value.default_factory],
        dict,
        lambda all_, first: defaultdict(first, all_),
    ),
}
"""A type of the standard library -> the parts of a value of exactly it, the type of the first part, and what makes the
value of them. A reference in the place of that part would be asked for its items."""

NAMED = {kind.__name__: (first, make) for kind, (_, first, make) in LIBRARY.items()}


class NotPlainError(Exception):
    """What arrived is not an encoding of plain data."""


def encode(value: Any, refer: Callable[[Any], Any]) -> Any:  # noqa: PLR0911 - a line a type
    """A value as JSON's types; `refer(value)` gives what crosses instead of an object that is not plain."""
    if known := LIBRARY.get(type(value)):
        return {type(value).__name__: _encode_all(known[0](value), refer)}
    # Each iteration is the builtin type's own: that of a subclass may do anything.
    match value:
        case None | bool() | float() | str():
            return value
        case int():
            return value if int.bit_length(value) <= PLAIN_INTEGER_BITS else {"int": hex(value)}
        case list():
            return _encode_all(list.__iter__(value), refer)
        case dict():
            return {"dict": [_encode_all(item, refer) for item in dict.items(value)]}
        case tuple():
            return {"tuple": _encode_all(tuple.__iter__(value), refer)}
        case set():
            return {"set": _encode_all(set.__iter__(value), refer)}
        case frozenset():
            return {"frozenset": _encode_all(frozenset.__iter__(value), refer)}
        case bytes() | bytearray():
            return {"bytes" if isinstance(value, bytes) else "bytearray": value.hex()}
        case complex():
            return {"complex": [value.real, value.imag]}
        case type() as kind if vars(builtins).get(kind.__name__) is kind:
            return {"type": kind.__name__}
    return refer(value)


def _encode_all(values: Iterable[Any], refer: Callable[[Any], Any]) -> list[Any]:
    return [encode(value, refer) for value in values]


def decode(data: Any, resolve: Callable[[Any], Any]) -> Any:
    """The value of an encoding; `resolve(reference)` gives the object that a reference names.

    Raises NotPlainError for what `encode` does not write.
    """
    if isinstance(data, list):
        return [decode(item, resolve) for item in data]
    if not isinstance(data, dict):
        return data
    try:
        ((kind, content),) = data.items()
        return _decode(kind, content, resolve)
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise NotPlainError(f"{type(error).__name__} while decoding") from None


def _decode(kind: str, content: Any, resolve: Callable[[Any], Any]) -> Any:  # noqa: PLR0911 - a line a type
    match kind:
        case "int":
            return int(content, 16)
        case "tuple":
            return tuple(decode(item, resolve) for item in content)
        case "set":
            return {decode(item, resolve) for item in content}
        case "frozenset":
            return frozenset(decode(item, resolve) for item in content)
        case "dict":
            return {decode(key, resolve): decode(item, resolve) for key, item in content}
        case "bytes":
            return bytes.fromhex(content)
        case "bytearray":
            return bytearray.fromhex(content)
        case "complex":
            return complex(*content)
        case "type":
            return _builtin_type(content)
        case "reference":
            return resolve(content)
    if kind in NAMED:
        first, make = NAMED[kind]
        parts = [decode(part, resolve) for part in content]
        if type(parts[0]) is first:
            return make(*parts)
    raise NotPlainError(f"unknown kind {kind!r:.40}")


def _builtin_type(name: str) -> type:
    found = getattr(builtins, name)
    if not isinstance(found, type):
        raise NotPlainError(f"{name} is not a type")
    return found


def update(old: Any, new: Any) -> Any:
    """Give `old`, a plain value, the content of `new`; returns `old` where it could be changed in place, else `new`.

    This is how a function's changes to its arguments reach the caller's lists, dicts and sets.
    """
    if type(old) is not type(new):
        return new
    if isinstance(old, deque):
        old.clear()
        old.extend(new)
    elif isinstance(old, list):
        old[:] = [*(update(left, right) for left, right in zip(old, new, strict=False)), *new[len(old) :]]
    elif isinstance(old, dict):
        merged = {key: update(old[key], item) if key in old else item for key, item in new.items()}
        old.clear()
        old.update(merged)
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    elif isinstance(old, bytearray):
        old[:] = new
    elif isinstance(old, tuple) and len(old) == len(new):
        merged_items = [update(left, right) for left, right in zip(old, new, strict=True)]
        return old if all(left is right for left, right in zip(old, merged_items, strict=True)) else new
    else:
        return new
    return old
