"""Packing: which spans of the token store make up each training row. An index, never a copy.

A row has `sequence_length` targets. A document of n tokens gives n targets: each of its tokens is predicted from those
before it, the first one from the end-of-sequence id that closes the document before.

`best_fit` (after Ding et al. 2024, "Fewer Truncations Improve Language Modeling", section 3): documents longer than a
row are cut into whole rows and a remainder; remainders and short documents go, longest first, where
they leave least space. Unlike there, the space that remains is filled with pieces of the emptiest rows, so that no more
than one row is padded.
`concatenate` chops the stream of documents every `sequence_length` tokens; what is left at its end is not trained on.
"""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from stages.formats.tokens import MANIFEST, TokenStore
from stages.runtime.cache import cache_key, cached
from stages.runtime.hashes import file_sha256

Integers = npt.NDArray[np.int64]

Strategy: TypeAlias = Literal["best_fit", "concatenate"]

KEPT_FROM_DOCUMENTS = 100_000
"""An index of fewer documents is built in a second; that of ten million takes minutes, and a GB meanwhile."""


class Span(NamedTuple):
    """A span of targets in the store."""

    start: int
    """Position of the first target."""
    length: int
    """Targets."""


@dataclass(frozen=True)
class PackingIndex:
    """Row r holds the segments starts[offsets[r]:offsets[r + 1]], of as many targets as `lengths` says."""

    starts: Integers
    lengths: Integers
    offsets: Integers

    @property
    def rows(self) -> int:
        """Training rows in an epoch."""
        return len(self.offsets) - 1

    def target_count(self, rows: Integers) -> int:
        """Targets in the given rows together."""
        return sum(int(self.lengths[self.offsets[row] : self.offsets[row + 1]].sum()) for row in rows)

    def segments(self, row: int) -> list[Span]:
        """The spans of the store that make up a row."""
        here = slice(self.offsets[row], self.offsets[row + 1])
        pairs = zip(self.starts[here].tolist(), self.lengths[here].tolist(), strict=True)
        return [Span(start, length) for start, length in pairs]


def open_packing(store: TokenStore, sequence_length: int, strategy: Strategy) -> PackingIndex:
    """`build_packing`; that of a large store is built once on a machine, and mapped into the memory of its processes.

    The command opens it before it starts workers.
    """
    if store.manifest.documents < KEPT_FROM_DOCUMENTS or strategy == "concatenate":
        return build_packing(store, sequence_length, strategy)
    key = cache_key(file_sha256(store.folder / MANIFEST), str(sequence_length), strategy)
    folder = cached(CACHE_NAME, key, partial(_write, store, sequence_length, strategy))
    return PackingIndex(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS))


ARRAYS = ("starts", "lengths", "offsets")

CACHE_NAME = "packing"
"""Of the indexes of large stores."""


def _write(store: TokenStore, sequence_length: int, strategy: Strategy, folder: Path) -> None:
    index = build_packing(store, sequence_length, strategy)
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", getattr(index, name))


def build_packing(store: TokenStore, sequence_length: int, strategy: Strategy) -> PackingIndex:
    """The index of a store; the same for the same documents, sequence length and strategy."""
    if strategy == "concatenate":
        rows = store.manifest.tokens // sequence_length
        starts = np.arange(rows, dtype=np.int64) * sequence_length
        return PackingIndex(starts, np.full(rows, sequence_length, dtype=np.int64), np.arange(rows + 1, dtype=np.int64))
    return pack(store.document_starts, store.document_lengths, sequence_length, strategy)


def pack(starts: Integers, lengths: Integers, sequence_length: int, strategy: Strategy) -> PackingIndex:
    """The index of some documents of a store, in their order, by the position of their first token and their length."""
    if strategy == "concatenate":
        return _chop(starts, lengths, sequence_length)
    full_starts, remainders = cut_documents(starts, lengths, sequence_length)
    packed = fill_gaps(pack_remainders(remainders, sequence_length), sequence_length)
    segments = [segment for row in packed for segment in row]
    counts = np.concatenate(
        [np.ones(len(full_starts), dtype=np.int64), np.array([len(row) for row in packed], dtype=np.int64)]
    )
    return PackingIndex(
        starts=np.concatenate([full_starts, np.array([s.start for s in segments], dtype=np.int64)]),
        lengths=np.concatenate(
            [
                np.full(len(full_starts), sequence_length, dtype=np.int64),
                np.array([s.length for s in segments], dtype=np.int64),
            ]
        ),
        offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)]),
    )


def _chop(starts: Integers, lengths: Integers, sequence_length: int) -> PackingIndex:
    """Rows of the documents' stream: it is cut where a row or a document begins."""
    begins = np.cumulative_sum(lengths, include_initial=True)  # of each document, in the stream
    rows = int(begins[-1]) // sequence_length
    row_begins = np.arange(rows + 1) * sequence_length
    cuts = np.union1d(begins[begins < rows * sequence_length], row_begins)
    documents = np.searchsorted(begins, cuts[:-1], side="right") - 1
    return PackingIndex(
        starts=starts[documents] + cuts[:-1] - begins[documents],
        lengths=np.diff(cuts),
        offsets=np.searchsorted(cuts, row_begins),
    )


def cut_documents(starts: Integers, lengths: Integers, sequence_length: int) -> tuple[Integers, list[Span]]:
    """The starts of whole rows within documents, and what is left of each document."""
    whole = lengths // sequence_length
    first = np.repeat(starts, whole)
    within = np.arange(len(first)) - np.repeat(np.cumsum(whole) - whole, whole)
    remainder_starts = starts + whole * sequence_length
    remainder_lengths = lengths % sequence_length
    remainders = [
        Span(start, length)
        for start, length in zip(remainder_starts.tolist(), remainder_lengths.tolist(), strict=True)
        if length
    ]
    return first + within * sequence_length, remainders


def pack_remainders(remainders: list[Span], sequence_length: int) -> list[list[Span]]:
    """Best-fit decreasing: each remainder, longest first, into the row that it leaves least space in."""
    rows: list[list[Span]] = []
    rows_by_space: dict[int, list[int]] = {}
    spaces: list[int] = []
    for remainder in sorted(remainders, key=lambda span: (-span.length, span.start)):
        # The spaces left in rows, ascending: the first that is large enough is the one that fits best.
        best = bisect_left(spaces, remainder.length)
        if best == len(spaces):
            row, space = len(rows), sequence_length
            rows.append([])
        else:
            space = spaces[best]
            row = rows_by_space[space].pop()
            if not rows_by_space[space]:
                del rows_by_space[space], spaces[best]
        rows[row].append(remainder)
        left = space - remainder.length
        if left:
            if left not in rows_by_space:
                insort(spaces, left)
            rows_by_space.setdefault(left, []).append(row)
    return rows


def fill_gaps(rows: list[list[Span]], sequence_length: int) -> list[list[Span]]:
    """Fill the rows that have space with pieces of the emptiest ones; all but the last become full.

    An example with 5 targets in a row, a letter per target: the rows are `aaa`, `bbbb` and `cc`. Fullest first, `bbbb`
    lacks one: the emptiest row, `cc`, is taken apart and gives one `c`. `aaa` lacks two: it gets the other `c` and
    remains one short, as nothing is left to take apart. The result is `bbbbc`, `aaac`.
    """
    waiting = deque(sorted(rows, key=lambda row: -sum(segment.length for segment in row)))
    pieces: list[Span] = []
    filled: list[list[Span]] = []
    while waiting or pieces:
        row = waiting.popleft() if waiting else []
        space = sequence_length - sum(segment.length for segment in row)
        while space and (pieces or waiting):
            if not pieces:
                pieces = waiting.pop()
            piece = pieces.pop()
            taken = Span(piece.start, min(piece.length, space))
            row = [*row, taken]
            space -= taken.length
            if taken.length < piece.length:
                # What remains of the piece is the first to fill the next row.
                pieces.append(Span(piece.start + taken.length, piece.length - taken.length))
        filled.append(row)
    return filled
