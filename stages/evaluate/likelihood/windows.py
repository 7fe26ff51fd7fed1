"""Which positions of a document are scored with which context.

A document of n tokens (its closing end-of-sequence id counted) is read as [eos, token 1, ..., token n - 1], and each
of its n positions predicts the token that follows. The first window scores all its positions; each later one begins
`stride` positions later and scores only what no earlier window has scored. 10 positions, context 4, stride 3:

    position   0 1 2 3 4 5 6 7 8 9
    window 1   S S S S
    window 2         c S S S            S is scored, c is context only
    window 3               c S S S
"""

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

from stages.evaluate.likelihood.documents import Tokens

SHORT_WINDOWS = 8
"""A batch of short windows has at most this many times `batch_size` windows."""

POSITION_BUCKETS = 64
"""Points of the curve of loss by position, at most."""


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """How documents are cut into windows, in tokens."""

    context_length: int
    stride: int
    """By which a window advances."""

    @property
    def buckets(self) -> npt.NDArray[np.int64]:
        """The first position of each bucket of positions, of equal width or one token apart; shape (buckets,)."""
        count = min(POSITION_BUCKETS, self.context_length)
        return np.arange(count, dtype=np.int64) * self.context_length // count


@dataclass(frozen=True, slots=True)
class Window:
    """Positions start..stop of one document; positions from `scored_from` are scored."""

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


def batches(windows: Iterable[Window], tokens: int, most: int) -> list[list[Window]]:
    """Group windows of similar length and context, so that little is padded; the longest first.

    A batch has at most `tokens` tokens, padding included, and at most `most` windows, but at least one window. The
    order depends on the windows alone. If memory is too small, the first batch shows it.
    """
    grouped: list[list[Window]] = []
    for window in sorted(windows, key=lambda window: (-window.length, window.context, window.document, window.start)):
        if not grouped or len(grouped[-1]) == most or (len(grouped[-1]) + 1) * grouped[-1][0].length > tokens:
            grouped.append([])
        grouped[-1].append(window)
    return grouped


@dataclass(frozen=True)
class ScoringPlan:
    """Which windows of a set are scored together."""

    tokens: Tokens
    sizes: WindowSizes
    batch_size: int
    """Windows that the model reads at once where they are as long as the context; of shorter ones it reads more."""

    @cached_property
    def batches(self) -> list[list[Window]]:
        """Windows that the model reads at once."""
        return batches(self.windows(), self.batch_size * self.sizes.context_length, SHORT_WINDOWS * self.batch_size)

    def windows(self) -> Iterator[Window]:
        """Those of all documents."""
        lengths = enumerate(self.tokens.lengths.tolist())
        cut = (document_windows(number, length, *astuple(self.sizes)) for number, length in lengths)
        return chain.from_iterable(cut)


def scored_per_bucket(plan: ScoringPlan) -> npt.NDArray[np.int64]:
    """How many tokens are scored in each bucket of positions; shape (buckets,)."""
    changes = np.zeros(plan.sizes.context_length + 1, dtype=np.int64)
    for window in plan.windows():
        changes[window.context] += 1
        changes[window.length] -= 1
    return np.add.reduceat(np.cumsum(changes)[:-1], plan.sizes.buckets)
