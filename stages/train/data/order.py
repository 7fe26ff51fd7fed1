"""The order of a run's data: an index of rows, and which of them each step trains on.

A function of the parameters, the store and the step alone, so nothing of it is saved and nothing skipped on resume.
Without a mixture, `batches.rows_of_step`. With one, the draws are shared out among the sources (`draws.py`), and the
draws from a source go through the permutations of its rows in all epochs, one after the other.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from stages.formats.tokens import TokenStore
from stages.runtime.entry import UserError
from stages.train.data.batches import BatchParams, rows_before, rows_of_step
from stages.train.data.draws import Draws, Ratios, whole_numbers
from stages.train.data.mixture import OTHERS, Mixture, SourceWeights
from stages.train.data.packing import Integers, PackingIndex, Strategy, open_packing
from stages.train.data.sources import MixedRows, SourceRows, document_sources, open_mixed_rows


class OrderParams(BatchParams, Protocol):
    """What the order of the data follows from, as in the `train` section."""

    @property
    def seed(self) -> int:
        """Of the permutations."""

    @property
    def max_steps(self) -> int:
        """Which a phase may begin at a share of."""

    @property
    def sequence_length(self) -> int:
        """Targets in a row."""

    @property
    def packing(self) -> Strategy:
        """How documents become rows."""

    @property
    def mixture(self) -> Mixture | None:
        """Which sources they are of."""


@dataclass(frozen=True)
class MixedOrder:
    """Which row each draw of a run is, under a mixture."""

    seed: int
    sources: tuple[SourceRows, ...]
    left_out: SourceRows
    draws: Draws
    shares: tuple[tuple[float, ...], ...]
    """For each phase the share of the tokens that is asked of each source."""
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
        """The rows of the global batch of `step` (from 0), in order; shape (batch_size,)."""
        if self.mixed is None:
            return rows_of_step(self.params.seed, step, self.params, self.index.rows)
        drawn = range(rows_before(self.params, step), rows_before(self.params, step + 1))
        return np.array([self.mixed.row(draw) for draw in drawn])


def open_order(store: TokenStore, params: OrderParams) -> RowOrder:
    """The order of a run over a store. Raises UserError where the store lacks a source of the mixture."""
    if params.mixture is None:
        return RowOrder(params, open_packing(store, params.sequence_length, params.packing), None)
    rows = open_mixed_rows(store, params.sequence_length, params.packing, params.mixture)
    check_sources(store, rows, params.sequence_length)
    return RowOrder(params, rows.index, mixed_order(params, params.mixture, rows))


def mixed_order(params: OrderParams, mixture: Mixture, rows: MixedRows) -> MixedOrder:
    """The order of the draws, once it is known how many rows each source has."""
    shares = [shares_asked(mixture, weights, rows.sources) for weights in mixture.all_weights]
    # A source has at most one row that is not full. Rows are drawn such that the shares of the tokens are as asked.
    ratios = [
        Ratios(whole_numbers([share * one.rows / one.targets for share, one in zip(each, rows.sources, strict=True)]))
        for each in shares
    ]
    starts = tuple(rows_before(params, start) for start in mixture.starts(params.max_steps))
    return MixedOrder(params.seed, rows.sources, rows.left_out, Draws(starts, tuple(ratios)), tuple(shares))


def shares_asked(mixture: Mixture, weights: SourceWeights, sources: tuple[SourceRows, ...]) -> tuple[float, ...]:
    """The share of the tokens that some weights ask of each source; together 1."""
    size = {one.name: one.targets if mixture.weighting == "upsampling" else 1 for one in sources}
    asked = [weights.get(one.name, 0) * size[one.name] for one in sources]
    return tuple(one / sum(asked) for one in asked)


def check_sources(store: TokenStore, rows: MixedRows, sequence_length: int) -> None:
    """Raise UserError where a source of the mixture is not in the store, or is shorter than a row."""
    for source in rows.sources:
        if source.rows:
            continue
        if source.documents:
            raise UserError(
                f"params.yaml: train.mixture: the {source.stored_tokens:,} tokens of `{source.name}` in {store.folder} "
                f"are fewer than one sequence (train.sequence_length = {sequence_length}), and packing: concatenate "
                "pads none; use best_fit, shorter sequences, or remove it"
            )
        names, numbers = document_sources(store)
        tokens = np.bincount(numbers, weights=store.document_lengths, minlength=len(names))
        known = ", ".join(f"{names[place]} ({int(tokens[place]):,} tokens)" for place in np.argsort(-tokens)[:12])
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        lacking = "no other sources" if source.name == OTHERS else f"no source `{source.name}`"
        raise UserError(
            f"params.yaml: train.mixture: {store.folder} has {lacking}. It has {known}{more}. Correct the name or "
            "remove it; what clean.split holds out is not trained on"
        )
