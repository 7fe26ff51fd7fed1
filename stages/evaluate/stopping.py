"""Where a text that is being written is complete."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

End: TypeAlias = Callable[[str], int | None]
"""Asked after each piece: the index at which the text so far is to be cut; None while it is not complete."""


def stop_at(strings: Sequence[str]) -> End:
    """Ends a text before the first of these strings; where one token completes several, before the earliest."""
    return partial(_first, tuple(strings))


def _first(strings: Sequence[str], text: str) -> int | None:
    return min((index for string in strings if (index := text.find(string)) >= 0), default=None)
