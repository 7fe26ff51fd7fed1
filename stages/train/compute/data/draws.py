"""The source of each row that a run trains on, under a mixture.

The rows that a run trains on, its draws, are numbered, and the source of a draw is a function of its number alone: the
shares are exact at every point, and there is no state to save. The sources are split in halves down to single ones. Of
a group's first n draws, round(n * share) are from its left half, the rest from the right. One more draw therefore adds
one to one of the halves, and after any number of draws each source is within half a row per split of its exact share.

Three sources a, b, c with the weights 2, 1, 1: a is split from b and c, then b from c. The first eight draws are
a b a c a b a c.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

RESOLUTION = 2**40
"""Shares are kept as multiples of 1 / RESOLUTION."""


def whole_numbers(rates: Sequence[float]) -> tuple[int, ...]:
    """Rates as integers with nearly the same ratios; only a rate of 0 becomes 0."""
    total = sum(rates)
    return tuple(max(1, round(rate / total * RESOLUTION)) if rate else 0 for rate in rates)


@dataclass(frozen=True)
class Ratios:
    """Draws from sources in fixed ratios."""

    weights: tuple[int, ...]

    @cached_property
    def _sums(self) -> list[int]:
        return list(accumulate(self.weights, initial=0))

    def _left(self, first: int, middle: int, stop: int, draws: int) -> int:
        """How many of the first `draws` from the sources first..stop are from first..middle."""
        total = self._sums[stop] - self._sums[first]
        return (draws * (self._sums[middle] - self._sums[first]) + total // 2) // total if total else 0

    def source(self, draw: int) -> tuple[int, int]:
        """The source of a draw (from 0), and how many of the draws before it are from the same source."""
        first, stop = 0, len(self.weights)
        while stop - first > 1:
            middle = (first + stop) // 2
            before = self._left(first, middle, stop, draw)
            if self._left(first, middle, stop, draw + 1) > before:
                stop, draw = middle, before
            else:
                first, draw = middle, draw - before
        return first, draw

    def counts(self, draws: int) -> list[int]:
        """How many of the first `draws` are from each source."""
        return self._counts(0, len(self.weights), draws)

    def _counts(self, first: int, stop: int, draws: int) -> list[int]:
        if stop - first == 1:
            return [draws]
        middle = (first + stop) // 2
        left = self._left(first, middle, stop, draws)
        return self._counts(first, middle, left) + self._counts(middle, stop, draws - left)


@dataclass(frozen=True)
class Draws:
    """The draws of a run whose ratios change between phases."""

    starts: tuple[int, ...]
    """The first draw of each phase, beginning with 0."""
    phases: tuple[Ratios, ...]

    @cached_property
    def _before(self) -> list[list[int]]:
        """The draws from each source before each phase."""
        before = [[0] * len(self.phases[0].weights)]
        for ratios, start, stop in zip(self.phases, self.starts, self.starts[1:], strict=False):
            before.append(_sum(before[-1], ratios.counts(stop - start)))
        return before

    def source(self, draw: int) -> tuple[int, int]:
        """The source of a draw (from 0), and how many of the draws before it are from the same source."""
        phase = bisect_right(self.starts, draw) - 1
        source, number = self.phases[phase].source(draw - self.starts[phase])
        return source, self._before[phase][source] + number

    def counts(self, draws: int) -> list[int]:
        """How many of the first `draws` are from each source."""
        phase = max(0, bisect_right(self.starts, draws) - 1)
        return _sum(self._before[phase], self.phases[phase].counts(draws - self.starts[phase]))


def _sum(left: list[int], right: list[int]) -> list[int]:
    return [a + b for a, b in zip(left, right, strict=True)]
