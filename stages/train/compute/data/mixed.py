"""The order of a run's data under a mixture: the documents of each source form a separate stream.

A row is from one source. `draws.py` chooses the source of each draw, and the draws from a source follow permutations of
that source's rows. The store does not depend on the weights.
"""

import hashlib
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from stages.formats.tokens import TokenStore
from stages.runtime.errors import UserError
from stages.train.compute.data.draws import Draws, Ratios, whole_numbers
from stages.train.compute.data.rows import Integers, Permutation, Span, permutation
from stages.train.compute.mixture import OTHER_SOURCES, Mixture
from stages.train.compute.params import DataOrder


@dataclass(frozen=True)
class PackedDocuments:
    """Row r consists of the spans at starts[offsets[r]:offsets[r + 1]], with `lengths` targets."""

    starts: Integers
    lengths: Integers
    offsets: Integers

    @property
    def rows(self) -> int:
        """Training rows in an epoch."""
        return len(self.offsets) - 1

    def spans(self, row: int) -> list[Span]:
        """As `RowIndex.spans`."""
        here = slice(self.offsets[row], self.offsets[row + 1])
        pairs = zip(self.starts[here].tolist(), self.lengths[here].tolist(), strict=True)
        return [Span(start, length) for start, length in pairs]


def pack_documents(starts: Integers, lengths: Integers, sequence_length: int) -> PackedDocuments:
    """The rows of some documents, given the positions of their first tokens in the store and their lengths.

    The stream is cut at the beginning of each row and document. Documents of 3 and 4 tokens at 0 and 10, in rows of 5:
    the first row holds the spans 0..3 and 10..12; two tokens are left over.
    """
    begins = np.cumulative_sum(lengths, include_initial=True)  # of each document, in the stream
    rows = int(begins[-1]) // sequence_length
    row_begins = np.arange(rows + 1) * sequence_length
    cuts = np.union1d(begins[begins < rows * sequence_length], row_begins)
    documents = np.searchsorted(begins, cuts[:-1], side="right") - 1
    return PackedDocuments(
        starts=starts[documents] + cuts[:-1] - begins[documents],
        lengths=np.diff(cuts),
        offsets=np.searchsorted(cuts, row_begins),
    )


def joined_indexes(indexes: list[PackedDocuments]) -> PackedDocuments:
    """Concatenate indexes."""
    shifts = np.cumulative_sum([len(index.starts) for index in indexes], include_initial=True)
    offsets = [index.offsets[1:] + shift for index, shift in zip(indexes, shifts[:-1], strict=True)]
    return PackedDocuments(
        starts=np.concatenate([index.starts for index in indexes]),
        lengths=np.concatenate([index.lengths for index in indexes]),
        offsets=np.concatenate([np.zeros(1, dtype=np.int64), *offsets]),
    )


@dataclass(frozen=True)
class SourceRows:
    """The rows of one source: `rows` rows from `first_row` in the index of all sources."""

    name: str
    documents: int
    stored_tokens: int
    """In the token store."""
    first_row: int
    rows: int


@dataclass(frozen=True)
class MixedOrder:
    """The rows that each step of a run reads, under a mixture."""

    params: DataOrder
    index: PackedDocuments
    sources: tuple[SourceRows, ...]
    """As in `Mixture.sources`."""
    draws: Draws
    _epochs: dict[int, tuple[int, Permutation]] = field(default_factory=dict)
    """Source -> its current epoch, and that epoch's permutation of its rows."""

    def rows_of_step(self, step: int) -> Integers:
        """As `RowOrder.rows_of_step`."""
        return np.array([self.row(draw) for draw in self.params.draws_of_step(step)])

    def row(self, draw: int) -> int:
        """The row of a draw (from 0)."""
        source, number = self.draws.source(draw)
        rows = self.sources[source]
        return rows.first_row + int(self.epoch(source, number // rows.rows)[number % rows.rows])

    def epoch(self, source: int, epoch: int) -> Permutation:
        """The permutation of a source's rows in one of its epochs.

        The seed includes the source's name, so its order does not depend on other sources or on the weights.
        """
        known, order = self._epochs.get(source, (-1, None))
        if order is None or known != epoch:
            rows = self.sources[source]
            name = int.from_bytes(hashlib.sha256(rows.name.encode()).digest()[:8])
            order = permutation([self.params.seed, epoch, name], rows.rows)
            self._epochs[source] = (epoch, order)
        return order


def open_mixed_order(store: TokenStore, params: DataOrder, mixture: Mixture) -> MixedOrder:
    """The order of a run over a store. Raises UserError if the store lacks a source of the mixture."""
    index, sources = pack_sources(store, params.sequence_length, mixture)
    check_sources(store, sources, params.sequence_length)
    weights = [[asked.get(source.name, 0) for source in sources] for asked in mixture.all_weights]
    starts = tuple(start * params.global_batch_size for start in mixture.starts(params.max_steps))
    return MixedOrder(params, index, sources, Draws(starts, tuple(Ratios(whole_numbers(each)) for each in weights)))


def document_sources(store: TokenStore) -> tuple[list[str], Integers]:
    """The sorted names of the sources in a store, and the index of each document's source among them."""
    seen: dict[str, int] = {}
    numbers = np.array([seen.setdefault(info["source"], len(seen)) for info in store.document_infos()], dtype=int)
    names = sorted(seen)
    position = {name: number for number, name in enumerate(names)}
    return names, np.array([position[name] for name in seen], dtype=np.int64)[numbers]


def pack_sources(
    store: TokenStore, sequence_length: int, mixture: Mixture
) -> tuple[PackedDocuments, tuple[SourceRows, ...]]:
    """The rows of each source of a mixture. A source that the store lacks gets no documents."""
    names, numbers = document_sources(store)
    position = {name: number for number, name in enumerate(mixture.sources)}
    named, others = mixture.named, position.get(OTHER_SOURCES, -1)
    of_name = [position.get(name, -1 if name in named else others) for name in names]
    of_document = np.array(of_name, dtype=np.int64)[numbers]
    by_source = np.argsort(of_document, kind="stable")  # keeps the store's order within a source
    bounds = np.searchsorted(of_document[by_source], np.arange(len(position) + 1))
    indexes, sources, first_row = [], [], 0
    for name, (first, stop) in zip(position, pairwise(bounds.tolist()), strict=True):
        documents = by_source[first:stop]
        lengths = store.document_lengths[documents]
        index = pack_documents(store.document_starts[documents], lengths, sequence_length)
        sources.append(SourceRows(name, len(documents), int(lengths.sum()), first_row, index.rows))
        indexes.append(index)
        first_row += index.rows
    return joined_indexes(indexes), tuple(sources)


def check_sources(store: TokenStore, sources: tuple[SourceRows, ...], sequence_length: int) -> None:
    """Raise UserError if a source of the mixture is missing from the store or shorter than a row."""
    for source in sources:
        if source.rows:
            continue
        if source.documents:
            raise UserError(
                f"params.yaml: train.mixture: the {source.stored_tokens:,} tokens of `{source.name}` in {store.folder} "
                f"are fewer than one sequence (train.sequence_length = {sequence_length}); use shorter sequences, or "
                "remove it"
            )
        names, numbers = document_sources(store)
        tokens = np.bincount(numbers, weights=store.document_lengths, minlength=len(names))
        known = ", ".join(f"{names[place]} ({int(tokens[place]):,} tokens)" for place in np.argsort(-tokens)[:12])
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        lacking = "no other sources" if source.name == OTHER_SOURCES else f"no source `{source.name}`"
        raise UserError(
            f"params.yaml: train.mixture: {store.folder} has {lacking}. It has {known}{more}. Correct the name or "
            "remove it; what clean.split holds out is not trained on"
        )
