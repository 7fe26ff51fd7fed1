"""Where a text that is being generated ends."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

End: TypeAlias = Callable[[str], int | None]
"""Called after each piece: the index at which to cut the text so far; None while it has not ended."""


def stop_at(strings: Sequence[str]) -> End:
    """Ends a text before the first of these strings; where one token completes several, before the earliest."""
    return partial(_first, tuple(strings))


def _first(strings: Sequence[str], text: str) -> int | None:
    return min((index for string in strings if (index := text.find(string)) >= 0), default=None)
