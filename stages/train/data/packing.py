"""Packing: which spans of the token store make up each training row. An index, never a copy.

A row has `sequence_length` targets. A document of n tokens gives n targets: each of its tokens is predicted from those
before it, the first one from the end-of-sequence id that closes the document before. The stream of documents is cut
every `sequence_length` tokens; the rest at its end is not trained on.

Under a mixture the documents of each source are a stream of their own, so a row comes from one source. The token store
knows nothing of mixtures: neither a source nor a weight changes a token, and a change of weights changes no row.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stages.formats.tokens import TokenStore
from stages.train.data.mixture import OTHERS, Mixture

Integers = npt.NDArray[np.int64]


class Span(NamedTuple):
    """A span of targets in the store."""

    start: int
    """Position of the first target."""
    length: int
    """Targets."""


@dataclass(frozen=True)
class PackingIndex:
    """Row r holds the segments starts[offsets[r]:offsets[r + 1]], with as many targets as `lengths` says."""

    starts: Integers
    lengths: Integers
    offsets: Integers

    @property
    def rows(self) -> int:
        """Training rows in an epoch."""
        return len(self.offsets) - 1

    def segments(self, row: int) -> list[Span]:
        """The spans of the store that make up a row."""
        here = slice(self.offsets[row], self.offsets[row + 1])
        pairs = zip(self.starts[here].tolist(), self.lengths[here].tolist(), strict=True)
        return [Span(start, length) for start, length in pairs]


def pack(store: TokenStore, sequence_length: int) -> PackingIndex:
    """The rows of a whole store: one segment each."""
    offsets = np.arange(store.manifest.tokens // sequence_length + 1, dtype=np.int64)
    return PackingIndex(offsets[:-1] * sequence_length, np.full_like(offsets[1:], sequence_length), offsets)


def pack_documents(starts: Integers, lengths: Integers, sequence_length: int) -> PackingIndex:
    """The rows of some documents, given the position of their first token in the store and their length.

    The stream is cut where a row or a document begins. Documents of 3 and 4 tokens at 0 and 10, in rows of 5: the first
    row holds the segments 0..3 and 10..12; two tokens are left over.
    """
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


@dataclass(frozen=True)
class SourceRows:
    """The rows of one source: `first_row` and those that follow it in the index of all sources."""

    name: str
    documents: int
    stored_tokens: int
    """In the token store."""
    first_row: int
    rows: int


@dataclass(frozen=True)
class MixedRows:
    """The rows of all sources of a mixture."""

    index: PackingIndex
    sources: tuple[SourceRows, ...]
    """As in `Mixture.sources`."""
    left_out: SourceRows
    """All other documents, without rows."""


def document_sources(store: TokenStore) -> tuple[list[str], Integers]:
    """The sorted names of the sources in a store, and the number of each document's source among them."""
    found: dict[str, int] = {}
    numbers = np.array([found.setdefault(info["source"], len(found)) for info in store.document_infos()], dtype=int)
    names = sorted(found)
    places = np.array([names.index(name) for name in found], dtype=np.int64)
    return names, places[numbers]


def pack_sources(store: TokenStore, sequence_length: int, mixture: Mixture) -> MixedRows:
    """Pack the documents of each source of a mixture. A source that the store lacks has no documents here."""
    names, numbers = document_sources(store)
    indexes, sources, first_row = [], [], 0
    taken = np.zeros(len(numbers), dtype=np.bool_)
    for name in mixture.sources:
        is_own = [known == name or (name == OTHERS and known not in mixture.named) for known in names]
        own = np.array(is_own, dtype=np.bool_)[numbers]
        taken |= own
        lengths = store.document_lengths[own]
        index = pack_documents(store.document_starts[own], lengths, sequence_length)
        sources.append(SourceRows(name, int(own.sum()), int(lengths.sum()), first_row, index.rows))
        indexes.append(index)
        first_row += index.rows
    rest = ~taken
    left_out = SourceRows("", int(rest.sum()), int(store.document_lengths[rest].sum()), first_row, 0)
    return MixedRows(joined(indexes), tuple(sources), left_out)


def joined(indexes: list[PackingIndex]) -> PackingIndex:
    """One index of the rows of several, in their order."""
    shifts = np.cumulative_sum([len(index.starts) for index in indexes], include_initial=True)
    offsets = [index.offsets[1:] + shift for index, shift in zip(indexes, shifts[:-1], strict=True)]
    return PackingIndex(
        starts=np.concatenate([index.starts for index in indexes]),
        lengths=np.concatenate([index.lengths for index in indexes]),
        offsets=np.concatenate([np.zeros(1, dtype=np.int64), *offsets]),
    )
