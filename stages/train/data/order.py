"""The order of a run's data: an index of rows, and which of them each step trains on.

It is a pure function of (seed, step): nothing to save, nothing to skip. The permutations of the rows in all epochs, one
after the other, are cut into global batches. Under a mixture the draws are shared out among the sources (`mixture.py`),
and the draws from a source go through the permutations of its own rows. The tokens, the share and the epochs of each
source follow from it.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict

from stages.formats.tokens import TokenStore
from stages.runtime.entry import UserError
from stages.train.data.mixture import OTHERS, Draws, Mixture, Ratios, SourceWeights, whole_numbers
from stages.train.data.packing import (
    Integers,
    MixedRows,
    PackingIndex,
    SourceRows,
    document_sources,
    pack,
    pack_sources,
)
from stages.train.params import TrainParams


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, rows: int) -> Integers:
    """The permutation of the rows in one epoch (numpy's PCG64, keyed by seed and epoch)."""
    return np.random.default_rng([seed, epoch]).permutation(rows)


class DataOrder(BaseModel):
    """What determines the order of the data, as a run records it. The fields are those of the `train` section."""

    seed: int
    max_steps: int
    global_batch_size: int
    sequence_length: int
    mixture: Mixture | None = None
    """Only recorded if the run has one."""


OrderParams: TypeAlias = TrainParams | DataOrder


def draws_of_step(params: OrderParams, step: int) -> range:
    """The numbers of the rows that `step` (from 0) draws, counted over the whole run."""
    return range(step * params.global_batch_size, (step + 1) * params.global_batch_size)


def rows_of_step(seed: int, step: int, params: OrderParams, rows: int) -> Integers:
    """The rows of the global batch of `step` (from 0), in order; shape (global_batch_size,)."""
    drawn = draws_of_step(params, step)
    return np.array([epoch_order(seed, number // rows, rows)[number % rows] for number in drawn])


@dataclass(frozen=True)
class MixedOrder:
    """Which row each draw of a run is, under a mixture."""

    seed: int
    mixture: Mixture
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
        """The rows of the global batch of `step` (from 0), in order; shape (global_batch_size,)."""
        if self.mixed is None:
            return rows_of_step(self.params.seed, step, self.params, self.index.rows)
        return np.array([self.mixed.row(draw) for draw in draws_of_step(self.params, step)])


def open_order(store: TokenStore, params: OrderParams) -> RowOrder:
    """The order of a run over a store. Raises UserError if the store lacks a source of the mixture."""
    if params.mixture is None:
        return RowOrder(params, pack(store, params.sequence_length), None)
    rows = pack_sources(store, params.sequence_length, params.mixture)
    check_sources(store, rows, params.sequence_length)
    return RowOrder(params, rows.index, mixed_order(params, params.mixture, rows))


def mixed_order(params: OrderParams, mixture: Mixture, rows: MixedRows) -> MixedOrder:
    """The order of the draws, given how many rows each source has."""
    shares = [shares_asked(weights, rows.sources) for weights in mixture.all_weights]
    ratios = [Ratios(whole_numbers(each)) for each in shares]
    starts = tuple(start * params.global_batch_size for start in mixture.starts(params.max_steps))
    return MixedOrder(params.seed, mixture, rows.sources, rows.left_out, Draws(starts, tuple(ratios)), tuple(shares))


def shares_asked(weights: SourceWeights, sources: tuple[SourceRows, ...]) -> tuple[float, ...]:
    """The share of the tokens that some weights ask of each source; together 1."""
    asked = [weights.get(one.name, 0) for one in sources]
    return tuple(one / sum(asked) for one in asked)


def check_sources(store: TokenStore, rows: MixedRows, sequence_length: int) -> None:
    """Raise UserError if a source of the mixture is not in the store, or is shorter than a row."""
    for source in rows.sources:
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
        lacking = "no other sources" if source.name == OTHERS else f"no source `{source.name}`"
        raise UserError(
            f"params.yaml: train.mixture: {store.folder} has {lacking}. It has {known}{more}. Correct the name or "
            "remove it; what clean.split holds out is not trained on"
        )


WHOLE_RUN = "run"


class SourceShare(BaseModel):
    """What some steps of a run train on, of one source."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: int
    """Trained on; a token that is read in two epochs counts twice."""
    share: float
    """Of the tokens of all sources."""
    asked_share: float
    """By the weights."""
    epochs: float
    """The tokens as a multiple of the source's own."""


SourceShares: TypeAlias = dict[str, SourceShare]


def tokens_before(order: RowOrder, mixed: MixedOrder, step: int) -> list[int]:
    """Tokens of each source that the steps before `step` (from 0) train on."""
    counts = mixed.draws.counts(step * order.params.global_batch_size)
    return [count * order.params.sequence_length for count in counts]


def shares_in(order: RowOrder, mixed: MixedOrder, steps: range) -> SourceShares:
    """What some steps (from 0) train on of each source."""
    starts = [*(start for start in mixed.mixture.starts(order.params.max_steps) if start < steps.stop), steps.stop]
    tokens, asked = np.zeros(len(mixed.sources)), np.zeros(len(mixed.sources))
    for (first, stop), shares in zip(pairwise(starts), mixed.shares, strict=False):
        if stop > (first := max(first, steps.start)):
            before, after = (np.array(tokens_before(order, mixed, step)) for step in (first, stop))
            tokens += after - before
            asked += (after - before).sum() * np.array(shares)
    return {
        source.name: SourceShare(
            tokens=int(own),
            share=round(float(own / tokens.sum()), 6),
            asked_share=round(float(ask / tokens.sum()), 6),
            epochs=round(float(own / (source.rows * order.params.sequence_length)), 4),
        )
        for source, own, ask in zip(mixed.sources, tokens, asked, strict=True)
    }


def shares_by_phase(order: RowOrder) -> dict[str, SourceShares]:
    """The shares in the whole run and, if it has several phases, in each; empty without a mixture."""
    if (mixed := order.mixed) is None:
        return {}
    last = order.params.max_steps
    starts = [*(start for start in mixed.mixture.starts(last) if start < last), last]
    phases = {f"steps {first + 1} to {stop}": range(first, stop) for first, stop in pairwise(starts)}
    return {
        name: shares_in(order, mixed, steps)
        for name, steps in ({WHOLE_RUN: range(last)} | (phases if len(phases) > 1 else {})).items()
    }


def describe(order: RowOrder) -> Iterator[str]:
    """Yield a line for each source of a mixture, and one for the documents left out; nothing without a mixture."""
    if (mixed := order.mixed) is None:
        return
    by_phase = shares_by_phase(order)
    shares = by_phase.pop(WHOLE_RUN)
    for source in mixed.sources:
        of_run = shares[source.name]
        by = ", ".join(f"{found[source.name].share:.1%} in {steps}" for steps, found in by_phase.items())
        yield (
            f"mixture: {source.name}: {of_run.share:.2%} of the tokens{f' ({by})' if by else ''}, "
            f"{of_run.epochs:.2f} epochs of {source.rows * order.params.sequence_length:,} tokens in "
            f"{source.documents:,} documents"
        )
    if (left := mixed.left_out).documents:
        yield f"mixture: {left.documents:,} documents ({left.stored_tokens:,} tokens) are left out: they have no weight"
