"""Packing: which spans of the token store make up each training row. An index, never a copy.

A row has `sequence_length` targets. A document of n tokens gives n targets: each of its tokens is predicted from those
before it, the first one from the end-of-sequence id that closes the document before.

`best_fit` (after Ding et al. 2024, "Fewer Truncations Improve Language Modeling", section 3): documents longer than a
row are cut into whole rows and a remainder; remainders and short documents go, longest first, where
they leave least space. Unlike there, the space that remains is filled with pieces of the emptiest rows, so that no more
than one row is padded.
`concatenate` chops the stream of documents every `sequence_length` tokens; what is left at its end is not trained on.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from stages.formats.tokens import STORE_MANIFEST, TokenStore
from stages.runtime.atomic import file_sha256
from stages.runtime.cache import cache_key, cached
from stages.train.data.best_fit import best_fit

Integers = npt.NDArray[np.int64]
Integers32 = npt.NDArray[np.int32]

Strategy: TypeAlias = Literal["best_fit", "concatenate"]

KEPT_FROM_DOCUMENTS = 100_000
"""An index of fewer documents is built in less than a second; that of ten million takes ten, and 500 MB meanwhile."""


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
    key = cache_key(file_sha256(store.folder / STORE_MANIFEST), str(sequence_length), strategy)
    folder = cached(CACHE_NAME, key, partial(_write, store, sequence_length, strategy))
    return PackingIndex(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS))


ARRAYS = ("starts", "lengths", "offsets")

CACHE_NAME = "packing"
"""Of the indexes of large stores."""


def _write(store: TokenStore, sequence_length: int, strategy: Strategy, folder: Path) -> None:
    assert strategy == "best_fit"
    arrays = best_fit(store.document_starts, _lengths(store), sequence_length)
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", next(arrays))  # which is gone when the next one is made


def _lengths(store: TokenStore) -> Integers32 | Integers:
    """`store.document_lengths` in half the memory, where they are not too large."""
    lengths = np.diff(store.document_starts, append=store.manifest.tokens)
    return lengths.astype(np.int32) if lengths.max(initial=0) <= np.iinfo(np.int32).max else lengths


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
    return PackingIndex(*best_fit(starts, lengths, sequence_length))


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
