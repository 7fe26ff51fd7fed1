"""Where a text that is being generated ends."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

End: TypeAlias = Callable[[str], int | None]
"""Called after each piece: the index at which to cut the text so far; None while it has not ended."""


def stop_at(strings: Sequence[str]) -> End:
    """Ends a text before the first of these strings; where one token completes several, before the earliest."""
    return partial(_first, tuple(strings))


def after(beginning: str, end: End) -> End:
    """The same end, looked for after `beginning` where a text begins with it, and not before that is decided."""
    return partial(_after, beginning, end)


def _after(beginning: str, end: End, text: str) -> int | None:
    if len(text) < len(beginning) and beginning.startswith(text):
        return None
    skipped = len(beginning) if text.startswith(beginning) else 0
    cut = end(text[skipped:])
    return None if cut is None else skipped + cut


def _first(strings: Sequence[str], text: str) -> int | None:
    return min((index for string in strings if (index := text.find(string)) >= 0), default=None)
