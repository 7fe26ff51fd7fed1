"""Which stretch of which document is scored under which context.

A document of n tokens (its closing end-of-sequence id counted) is read as [eos, token 1, ..., token n - 1], and each
of its n positions predicts the token that follows. The first window scores all its positions; each later one begins
`stride` positions further on and scores only what no earlier window has scored.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """Positions start..stop of one document; those from `scored_from` on count."""

    document: int
    start: int
    scored_from: int
    stop: int

    @property
    def length(self) -> int:
        """Tokens that the model reads."""
        return self.stop - self.start

    @property
    def context(self) -> int:
        """Tokens that are read but not scored, at the window's beginning."""
        return self.scored_from - self.start


def document_windows(document: int, length: int, context_length: int, stride: int) -> Iterator[Window]:
    """Windows that score each of a document's `length` positions once.

    From the second window on, each scored token has at least `context_length - stride` tokens before it.
    """
    scored = 0
    start = 0
    while scored < length:
        stop = min(start + context_length, length)
        yield Window(document, start, scored, stop)
        scored = stop
        start += stride


def batches(windows: Iterable[Window], batch_size: int) -> list[list[Window]]:
    """Windows of like length and context together, so that little is padded; the longest first.

    The order depends on the windows alone, and memory runs out at once or never.
    """
    ordered = sorted(windows, key=lambda window: (-window.length, window.context, window.document, window.start))
    return [ordered[first : first + batch_size] for first in range(0, len(ordered), batch_size)]
