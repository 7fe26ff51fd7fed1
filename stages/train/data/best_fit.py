"""Best-fit packing over arrays of all documents: `packing.py` says what it gives.

Remainders are numbered longest first, so those of one length come together. A row that is taken for such a length gets
as many of them as fit, one after the other: with each it has less space than any other row that has enough. So the work
is in lengths and spaces, not in documents, and the memory is a few small numbers for each document.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Small = npt.NDArray[Any]
"""Of any dtype that is large enough: for the lengths of sequences or of documents, for numbers of documents or rows."""

DOCUMENTS_AT_ONCE = 1 << 17
"""For which temporary arrays exist at one time."""


def best_fit(starts: Integers, lengths: Small, sequence_length: int) -> Iterator[Integers]:
    """The `starts`, the `lengths` and the `offsets` of a `PackingIndex`, each made when it is asked for.

    First come the whole rows of documents, then those of remainders, the fullest first.
    """
    order, counts = longest_first(lengths, sequence_length)
    placed = sorted_by_space(place(counts, sequence_length))

    def remainders(numbers: Small) -> tuple[Integers, Integers]:
        """The starts and the lengths of some remainders."""
        documents = order[numbers]
        whole = lengths[documents] // sequence_length * sequence_length
        return starts[documents] + whole, lengths[documents] - whole

    full = int(np.searchsorted(placed.space, 1))
    short, edges = fill_gaps(placed.space[full:], sequence_length)
    kept, rows = full + short, full + len(edges) - 1
    taken = np.flatnonzero(placed.row >= kept)
    # Of the emptiest row first, and there the segment that was placed last.
    taken = taken[np.lexsort((placed.slot[taken], placed.row[taken]))[::-1]]
    pieces = cut(*remainders(taken), edges, full)
    own = np.zeros(rows, dtype=placed.segments.dtype)
    own[:kept] = placed.segments[:kept]
    whole_rows = sum(int((lengths[part] // sequence_length).sum()) for part in parts(len(lengths)))
    offsets = np.full(rows + 1, whole_rows, dtype=np.int64)
    offsets[1:] = own
    offsets[full + 1 :] += np.bincount(pieces.row - full, minlength=rows - full)
    np.cumsum(offsets, out=offsets)

    def laid_out(column: int) -> Integers:
        """The starts (0) or the lengths (1) of all segments, row by row."""
        found = np.full(offsets[-1], sequence_length, dtype=np.int64)
        if column == 0:
            write_whole_rows(found, starts, lengths, sequence_length)
        for part in parts(len(order)):
            here = placed.row[part] < kept
            at = offsets[placed.row[part][here]] + placed.slot[part][here]
            found[at] = remainders(part.start + np.flatnonzero(here))[column]
        within = np.arange(len(pieces.row)) - np.searchsorted(pieces.row, pieces.row)
        found[offsets[pieces.row] + own[pieces.row] + within] = pieces[column]
        return found

    yield laid_out(0)
    yield laid_out(1)
    yield np.concatenate([np.arange(whole_rows), offsets])


def parts(count: int) -> Iterator[slice]:
    """Slices of `DOCUMENTS_AT_ONCE`."""
    return (slice(first, first + DOCUMENTS_AT_ONCE) for first in range(0, count, DOCUMENTS_AT_ONCE))


def longest_first(lengths: Small, sequence_length: int) -> tuple[Small, Integers]:
    """The documents that leave a remainder, the longest first, and how many remainders have each length.

    Of one length they are in their order.
    """
    lacking = np.empty(len(lengths), dtype=np.min_scalar_type(sequence_length))
    counts = np.zeros(sequence_length + 1, dtype=np.int64)
    for part in parts(len(lengths)):
        lacking[part] = sequence_length - lengths[part] % sequence_length  # all of it where nothing remains: they end
        counts += np.bincount(lacking[part], minlength=sequence_length + 1)
    order = np.argsort(lacking, kind="stable")[: len(lengths) - counts[-1]].astype(np.int32)
    return order, counts[::-1]


@dataclass(frozen=True)
class Placed:
    """Which remainder is in which row."""

    row: Small
    """Of each remainder."""
    slot: Small
    """Of each remainder: how many were in its row before it."""
    segments: Small
    """Of each row: remainders in it."""
    space: Small
    """Of each row: targets that it lacks."""


def place(counts: Integers, sequence_length: int) -> Placed:
    """Best-fit decreasing: each remainder, longest first, into the row that it leaves least space in.

    Of rows with the same space the one that got it last is taken.
    """
    small, total = np.min_scalar_type(sequence_length), int(counts[1:].sum())
    row, slot = np.empty(total, dtype=np.int32), np.empty(total, dtype=small)
    # As many as there can be; what is not written to takes no memory.
    segments, space_left = np.zeros(total, dtype=small), np.zeros(total, dtype=small)
    by_space = RowsBySpace()
    rows = first = 0
    for length in range(sequence_length - 1, 0, -1):
        stop = first + int(counts[length])
        while first < stop:
            space = by_space.best(length)
            fitting = (space or sequence_length) // length
            wanted = -(-(stop - first) // fitting)
            if space is None:
                space, taken = sequence_length, np.arange(rows, rows + wanted, dtype=np.int32)
                rows += wanted
            else:
                taken = by_space.take(space, wanted)
            last = min(stop, first + fitting * len(taken))
            row[first:last] = np.repeat(taken, fitting)[: last - first]
            slot[first:last] = (segments[taken][:, None] + np.arange(fitting)).ravel()[: last - first]
            full, over = divmod(last - first, fitting)
            for some, number in ((taken[:full], fitting), (taken[full:], over)):
                segments[some] += number
                space_left[some] = space - number * length
                by_space.add(space - number * length, some)
            first = last
    return Placed(row, slot, segments[:rows], space_left[:rows])


class RowsBySpace:
    """The rows that have space left, as stacks by how much."""

    def __init__(self) -> None:
        self._spaces: list[int] = []
        self._stacks: dict[int, list[Small]] = {}

    def best(self, length: int) -> int | None:
        """The least space of at least `length` that some row has."""
        place = bisect_left(self._spaces, length)
        return self._spaces[place] if place < len(self._spaces) else None

    def add(self, space: int, rows: Small) -> None:
        """Put rows on the stack of a space; full ones are on none."""
        if not space or not len(rows):
            return
        if space not in self._stacks:
            insort(self._spaces, space)
            self._stacks[space] = []
        self._stacks[space].append(rows)

    def take(self, space: int, count: int) -> Small:
        """At most `count` rows off the stack of a space, the last one first."""
        taken, stack = [], self._stacks[space]
        while stack and count:
            rows = stack.pop()
            if len(rows) > count:
                stack.append(rows[:-count])
                rows = rows[-count:]
            taken.append(rows[::-1])
            count -= len(rows)
        if not stack:
            del self._stacks[space], self._spaces[bisect_left(self._spaces, space)]
        return np.concatenate(taken)


def sorted_by_space(placed: Placed) -> Placed:
    """The same with rows numbered anew, the fullest first."""
    order = np.argsort(placed.space, kind="stable")
    numbers = np.empty(len(order), dtype=np.int32)
    numbers[order] = np.arange(len(order), dtype=np.int32)
    return Placed(numbers[placed.row], placed.slot, placed.segments[order], placed.space[order])


def fill_gaps(space: Small, sequence_length: int) -> tuple[int, Integers]:
    """Fill rows with those after them, from the last one on; all but the last become full.

    `space`: of each row, ascending. Returns how many rows are kept, the first ones, and from where to where each takes
    of the targets of the others, which are taken apart; (rows + 1,). What is left in the end is a row more.

    An example with 5 targets in a row: the rows lack 1, 2 and 3 (`bbbb`, `aaa`, `cc`). `cc` is taken apart. `bbbb`
    takes its first target, `aaa` the second, and stays one short: 2, [0, 1, 2].
    """
    asked = np.cumulative_sum(space, dtype=np.int64, include_initial=True)
    given = np.cumulative_sum(sequence_length - space[::-1].astype(np.int64), include_initial=True)
    # Before a row is filled, as many rows are taken apart as those before it needed.
    kept = int(np.argmax(np.arange(len(asked)) + np.searchsorted(given, asked) >= len(space)))
    there = given[len(space) - kept]
    edges = np.minimum(asked[: kept + 1], there)
    return kept, edges if edges[-1] == there else np.append(edges, there)


class Pieces(NamedTuple):
    """Of segments that were cut."""

    starts: Integers
    lengths: Integers
    row: Integers
    """That each is in; ascending."""


def cut(starts: Integers, lengths: Integers, edges: Integers, first_row: int) -> Pieces:
    """Segments, one after the other, cut where the share of a row begins or ends."""
    begins = np.cumulative_sum(lengths, include_initial=True)
    cuts = np.union1d(begins, edges)
    segment = np.searchsorted(begins, cuts[:-1], side="right") - 1
    row = first_row + np.searchsorted(edges, cuts[:-1], side="right") - 1
    return Pieces(starts[segment] + cuts[:-1] - begins[segment], np.diff(cuts), row)


def write_whole_rows(found: Integers, starts: Integers, lengths: Small, sequence_length: int) -> None:
    """The starts of the rows that lie within one document, into the first places of `found`."""
    first = 0
    for part in parts(len(lengths)):
        whole = lengths[part] // sequence_length
        own = np.arange(int(whole.sum())) - np.repeat(np.cumsum(whole) - whole, whole)
        found[first : first + len(own)] = np.repeat(starts[part], whole) + own * sequence_length
        first += len(own)
