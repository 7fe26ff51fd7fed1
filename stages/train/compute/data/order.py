"""The order of a run's data: an index of rows, which of them each step trains on, and the documents behind them.

It is a pure function of (seed, step): nothing to save, nothing to skip. The permutations of the rows in all epochs, one
after the other, are cut into global batches. Under a mixture the documents of each source are a stream of their own, so
a row comes from one source; the draws are shared out among the sources (`draws.py`), and the draws from a source go
through the permutations of its own rows. Other weights leave the store's rows and tokens as they are.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict

from stages.formats.tokens import TokenStore
from stages.runtime.errors import UserError
from stages.train.compute.data.batches import Integers, PackingIndex, joined_indexes, pack_documents, pack_rows
from stages.train.compute.data.draws import Draws, Ratios, whole_numbers
from stages.train.compute.mixture import OTHER_SOURCES, Mixture
from stages.train.compute.params import ComputingParams


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, rows: int) -> Integers:
    """The permutation of the rows in one epoch (numpy's PCG64, keyed by seed and epoch)."""
    return np.random.default_rng([seed, epoch]).permutation(rows)


class DataOrder(BaseModel):
    """Everything that determines the order of the data, as a run records it, by the names of the `train` section."""

    seed: int
    max_steps: int
    global_batch_size: int
    sequence_length: int
    mixture: Mixture | None = None
    """Only recorded if the run has one."""


OrderParams: TypeAlias = ComputingParams | DataOrder


def draws_of_step(params: OrderParams, step: int) -> range:
    """The numbers of the rows that `step` (from 0) draws, counted over the whole run."""
    return range(step * params.global_batch_size, (step + 1) * params.global_batch_size)


def rows_of_step(seed: int, step: int, params: OrderParams, rows: int) -> Integers:
    """The rows of the global batch of `step` (from 0), in order; shape (global_batch_size,)."""
    drawn = draws_of_step(params, step)
    return np.array([epoch_order(seed, number // rows, rows)[number % rows] for number in drawn])


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
class MixedOrder:
    """The row that each draw of a run reads, under a mixture."""

    seed: int
    sources: tuple[SourceRows, ...]
    """As in `Mixture.sources`."""
    draws: Draws
    _epochs: dict[int, tuple[int, Integers]] = field(default_factory=dict)
    """Source -> its current epoch, and the permutation of its rows in that."""

    def row(self, draw: int) -> int:
        """The row of a draw (from 0)."""
        source, number = self.draws.source(draw)
        rows = self.sources[source]
        return rows.first_row + int(self.epoch(source, number // rows.rows)[number % rows.rows])

    def epoch(self, source: int, epoch: int) -> Integers:
        """The permutation of a source's rows in one of its epochs.

        It is keyed by the source's name, so other sources and weights leave the order within it as it is.
        """
        known, order = self._epochs.get(source, (-1, None))
        if order is None or known != epoch:
            rows = self.sources[source]
            name = int.from_bytes(hashlib.sha256(rows.name.encode()).digest()[:8])
            order = np.random.default_rng([self.seed, epoch, name]).permutation(rows.rows)
            self._epochs[source] = (epoch, order)
        return order


@dataclass(frozen=True)
class RowOrder:
    """The rows of a run, and in which order it trains on them."""

    params: OrderParams
    index: PackingIndex
    mixed: MixedOrder | None
    """None without a mixture."""

    def rows_of_step(self, step: int) -> Integers:
        """The rows of the global batch of `step` (from 0), in order; shape (global_batch_size,)."""
        if self.mixed is None:
            return rows_of_step(self.params.seed, step, self.params, self.index.rows)
        return np.array([self.mixed.row(draw) for draw in draws_of_step(self.params, step)])


def open_order(store: TokenStore, params: OrderParams) -> RowOrder:
    """The order of a run over a store. Raises UserError if the store lacks a source of the mixture."""
    if (mixture := params.mixture) is None:
        return RowOrder(params, pack_rows(store, params.sequence_length), None)
    index, sources = pack_sources(store, params.sequence_length, mixture)
    check_sources(store, sources, params.sequence_length)
    weights = [[asked.get(source.name, 0) for source in sources] for asked in mixture.all_weights]
    starts = tuple(start * params.global_batch_size for start in mixture.starts(params.max_steps))
    draws = Draws(starts, tuple(Ratios(whole_numbers(each)) for each in weights))
    return RowOrder(params, index, MixedOrder(params.seed, sources, draws))


def document_sources(store: TokenStore) -> tuple[list[str], Integers]:
    """The sorted names of the sources in a store, and the number of each document's source among them."""
    found: dict[str, int] = {}
    numbers = np.array([found.setdefault(info["source"], len(found)) for info in store.document_infos()], dtype=int)
    names = sorted(found)
    places = np.array([names.index(name) for name in found], dtype=np.int64)
    return names, places[numbers]


def pack_sources(
    store: TokenStore, sequence_length: int, mixture: Mixture
) -> tuple[PackingIndex, tuple[SourceRows, ...]]:
    """The rows of each source of a mixture. A source that the store lacks has no documents here."""
    names, numbers = document_sources(store)
    indexes, sources, first_row = [], [], 0
    for name in mixture.sources:
        is_own = [known == name or (name == OTHER_SOURCES and known not in mixture.named) for known in names]
        own = np.array(is_own, dtype=np.bool_)[numbers]
        lengths = store.document_lengths[own]
        index = pack_documents(store.document_starts[own], lengths, sequence_length)
        sources.append(SourceRows(name, int(own.sum()), int(lengths.sum()), first_row, index.rows))
        indexes.append(index)
        first_row += index.rows
    return joined_indexes(indexes), tuple(sources)


def check_sources(store: TokenStore, sources: tuple[SourceRows, ...], sequence_length: int) -> None:
    """Raise UserError if a source of the mixture is not in the store, or is shorter than a row."""
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


class SourceShare(BaseModel):
    """The tokens of one source that a run trains on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: int
    """Trained on; a token that is read in two epochs counts twice."""
    share: float
    """Share of the tokens of all sources."""
    epochs: float
    """The tokens as a multiple of the source's own."""


def shares(order: RowOrder) -> dict[str, SourceShare]:
    """The tokens of each source that the whole run trains on; empty without a mixture."""
    if (mixed := order.mixed) is None:
        return {}
    draws = order.params.max_steps * order.params.global_batch_size
    return {
        source.name: SourceShare(
            tokens=rows * order.params.sequence_length,
            share=round(rows / draws, 6),
            epochs=round(rows / source.rows, 4),
        )
        for source, rows in zip(mixed.sources, mixed.draws.counts(draws), strict=True)
    }


def describe_order(order: RowOrder, store: TokenStore) -> Iterator[str]:
    """Yield a line for each source of a mixture, and one for the documents left out; nothing without a mixture."""
    if (mixed := order.mixed) is None:
        return
    for source, of_run in zip(mixed.sources, shares(order).values(), strict=True):
        yield (
            f"mixture: {source.name}: {of_run.share:.2%} of the tokens, {of_run.epochs:.2f} epochs of "
            f"{source.rows * order.params.sequence_length:,} tokens in {source.documents:,} documents"
        )
    if left := len(store.document_lengths) - sum(source.documents for source in mixed.sources):
        tokens = store.manifest.tokens - sum(source.stored_tokens for source in mixed.sources)
        yield f"mixture: {left:,} documents ({tokens:,} tokens) are left out: they have no weight"


@dataclass(frozen=True, slots=True)
class Origin:
    """A span of a document in a row of a global batch."""

    row: int
    """Index in the global batch."""
    source: str
    path: str
    license: str
    first: int
    """First token of the span, within its document."""
    stop: int
    """One after the last token of the span."""


def origins(store: TokenStore, order: RowOrder, step: int) -> Iterator[Origin]:
    """The spans that step number `step` (from 1) trained on, in the order of the batch."""
    for number, row in enumerate(order.rows_of_step(step - 1)):
        for segment in order.index.segments(int(row)):
            start = segment.start
            while start < segment.start + segment.length:
                document = store.document_at(start)
                begin, length = int(store.document_starts[document]), int(store.document_lengths[document])
                stop = min(segment.start + segment.length, begin + length)
                info = store.document_info(document)
                yield Origin(number, info["source"], info["path"], info.get("license", ""), start - begin, stop - begin)
                start = stop
