"""Packing: which spans of the token store make up each training row. An index, never a copy.

A row has `sequence_length` targets. A document of n tokens gives n targets: each of its tokens is predicted from those
before it, the first one from the end-of-sequence id that closes the document before.

`best_fit` (after Ding et al. 2024, "Fewer Truncations Improve Language Modeling", section 3): documents longer than a
row are cut into whole rows and a remainder; remainders and short documents go, longest first, where
they leave least space. Unlike there, the space that remains is filled with pieces of the emptiest rows, so that no more
than one row is padded.
`concatenate` chops the stream of documents every `sequence_length` tokens; what is left at its end is not trained on.

Under a mixture the documents of each source are packed apart, so that a row is of one source. The token store knows
nothing of mixtures: neither a source nor a weight changes a token, and a change of weights changes no index.
"""

import json
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
from stages.train.data.mixture import OTHERS, Mixture

Integers = npt.NDArray[np.int64]

Strategy: TypeAlias = Literal["best_fit", "concatenate"]

ARRAYS = ("starts", "lengths", "offsets")
SOURCES = "sources.json"
"""The files of an index."""

PACKING, MIXTURE = "packing", "mixture"
"""Kinds of the cache: the indexes of large stores."""

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
    return _mapped(cached(PACKING, key, partial(_write_best_fit, store, sequence_length)))


def _write_best_fit(store: TokenStore, sequence_length: int, folder: Path) -> None:
    lengths = np.diff(store.document_starts, append=store.manifest.tokens)
    if lengths.max(initial=0) <= np.iinfo(np.int32).max:
        lengths = lengths.astype(np.int32)  # half the memory
    arrays = best_fit(store.document_starts, lengths, sequence_length)
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", next(arrays))  # which is gone when the next one is made


def _mapped(folder: Path) -> PackingIndex:
    return PackingIndex(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS))


def build_packing(store: TokenStore, sequence_length: int, strategy: Strategy) -> PackingIndex:
    """The index of a store; the same for the same documents, sequence length and strategy."""
    if strategy == "concatenate":
        offsets = np.arange(store.manifest.tokens // sequence_length + 1, dtype=np.int64)
        return PackingIndex(offsets[:-1] * sequence_length, np.full_like(offsets[1:], sequence_length), offsets)
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


@dataclass(frozen=True)
class SourceRows:
    """The rows of one source: `first_row` and those that follow it in the index of all of them."""

    name: str
    documents: int
    stored_tokens: int
    """In the token store."""
    first_row: int
    rows: int
    targets: int
    """Of all its rows together: what one pass over them trains on."""


@dataclass(frozen=True)
class MixedRows:
    """The rows of all sources of a mixture."""

    index: PackingIndex
    sources: tuple[SourceRows, ...]
    """As in `Mixture.sources`."""
    left_out: SourceRows
    """All other documents, without rows."""


def document_sources(store: TokenStore) -> tuple[list[str], Integers]:
    """The names of the sources in a store, sorted, and for each document the number of its own among them."""
    found: dict[str, int] = {}
    numbers = np.array([found.setdefault(info["source"], len(found)) for info in store.document_infos()], dtype=int)
    names = sorted(found)
    places = np.array([names.index(name) for name in found], dtype=np.int64)
    return names, places[numbers]


def open_mixed_rows(store: TokenStore, sequence_length: int, strategy: Strategy, mixture: Mixture) -> MixedRows:
    """The rows of a mixture's sources; those of a large store are packed once on a machine, for any weights.

    A source that the store does not have has no documents here.
    """
    if store.manifest.documents < KEPT_FROM_DOCUMENTS:
        return pack_sources(store, sequence_length, strategy, mixture)
    names = json.dumps([mixture.sources, sorted(mixture.named)])
    key = cache_key(file_sha256(store.folder / STORE_MANIFEST), str(sequence_length), strategy, names)
    folder = cached(MIXTURE, key, partial(_write_sources, store, sequence_length, strategy, mixture))
    *sources, left_out = (SourceRows(**source) for source in json.loads((folder / SOURCES).read_bytes()))
    return MixedRows(_mapped(folder), tuple(sources), left_out)


def _write_sources(store: TokenStore, sequence_length: int, strategy: Strategy, mixture: Mixture, folder: Path) -> None:
    mixed = pack_sources(store, sequence_length, strategy, mixture)
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", getattr(mixed.index, name))
    (folder / SOURCES).write_text(json.dumps([vars(source) for source in (*mixed.sources, mixed.left_out)]))


def pack_sources(store: TokenStore, sequence_length: int, strategy: Strategy, mixture: Mixture) -> MixedRows:
    """Pack the documents of each source apart."""
    names, numbers = document_sources(store)
    indexes, sources, first_row = [], [], 0
    taken = np.zeros(len(numbers), dtype=np.bool_)
    for name in mixture.sources:
        is_own = [known == name or (name == OTHERS and known not in mixture.named) for known in names]
        own = np.array(is_own, dtype=np.bool_)[numbers]
        taken |= own
        lengths = store.document_lengths[own]
        index = pack(store.document_starts[own], lengths, sequence_length, strategy)
        targets = int(index.lengths.sum())
        sources.append(SourceRows(name, int(own.sum()), int(lengths.sum()), first_row, index.rows, targets))
        indexes.append(index)
        first_row += index.rows
    rest = ~taken
    left_out = SourceRows("", int(rest.sum()), int(store.document_lengths[rest].sum()), first_row, 0, 0)
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
