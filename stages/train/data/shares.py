"""What a mixture comes to: the tokens, the share and the epochs of each source, asked and realised."""

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict

from stages.runtime.entry import UserError
from stages.train.data.batches import rows_before
from stages.train.data.mixture import Mixture
from stages.train.data.order import MixedOrder, RowOrder

WHOLE_RUN = "run"


class SourceShare(BaseModel):
    """What some steps of a run train on, of one source."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: int
    """Targets; one that is read in two epochs counts twice."""
    share: float
    """Of the tokens of all sources."""
    asked_share: float
    """By the weights."""
    epochs: float
    """The tokens as a multiple of the source's own."""


SourceShares: TypeAlias = dict[str, SourceShare]


def tokens_before(order: RowOrder, mixed: MixedOrder, step: int) -> list[int]:
    """Targets of each source in the steps before `step` (from 0)."""
    counts = mixed.draws.counts(rows_before(order.params, step))
    return [_tokens(order, mixed, source, draws) for source, draws in enumerate(counts)]


def _tokens(order: RowOrder, mixed: MixedOrder, source: int, draws: int) -> int:
    rows, index = mixed.sources[source], order.index
    epochs, begun = divmod(draws, rows.rows)
    offsets = np.asarray(index.offsets[rows.first_row : rows.first_row + rows.rows + 1])
    of_row = np.add.reduceat(index.lengths[offsets[0] : offsets[-1]], offsets[:-1] - offsets[0])
    return epochs * rows.targets + int(of_row[mixed.epoch(source, epochs)[:begun]].sum())


def shares_in(order: RowOrder, mixed: MixedOrder, mixture: Mixture, steps: range) -> SourceShares:
    """Of each source, what some steps (from 0) train on."""
    params = order.params
    starts = [*(start for start in mixture.starts(params.max_steps) if start < steps.stop), steps.stop]
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
            epochs=round(float(own / source.targets), 4),
        )
        for source, own, ask in zip(mixed.sources, tokens, asked, strict=True)
    }


def shares_by_phase(order: RowOrder) -> dict[str, SourceShares]:
    """Of the whole run and, where it has several, of each phase; empty without a mixture."""
    if (mixed := order.mixed) is None or (mixture := order.params.mixture) is None:
        return {}
    last = order.params.max_steps
    starts = [*(start for start in mixture.starts(last) if start < last), last]
    phases = {f"steps {first + 1} to {stop}": range(first, stop) for first, stop in pairwise(starts)}
    return {
        name: shares_in(order, mixed, mixture, steps)
        for name, steps in ({WHOLE_RUN: range(last)} | (phases if len(phases) > 1 else {})).items()
    }


def check_repetition(order: RowOrder) -> None:
    """Raise UserError where a run would read a source more often than `max_repetition` allows."""
    if (mixed := order.mixed) is None or (mixture := order.params.mixture) is None:
        return
    last = order.params.max_steps
    after = tokens_before(order, mixed, last)
    draws = mixed.draws.counts(rows_before(order.params, last))
    said = []
    for number, (source, tokens) in enumerate(zip(mixed.sources, after, strict=True)):
        bound = mixture.repetition_bound(source.name)
        if bound is not None and draws[number] > bound * source.rows:
            share, most = tokens / sum(after), bound * source.targets / sum(after)
            said.append(
                f"`{source.name}` has {source.targets:,} tokens, and {last:,} steps ask for {tokens:,} "
                f"({share:.2%} of all): {draws[number] / source.rows:.2f} repetitions, its max_repetition is {bound}. "
                f"It is used up after step {_last_within(order, mixed, number, bound * source.rows):,}. Lower its "
                f"weight until its share of the run is {most:.2%} at most, raise its max_repetition to "
                f"{-(-draws[number] // source.rows)}, train for fewer steps, or collect more of it"
            )
    if said:
        raise UserError("\n".join(f"params.yaml: train.mixture: {line}" for line in said))


def _last_within(order: RowOrder, mixed: MixedOrder, source: int, draws: int) -> int:
    """The last step (from 1) after which a source has been drawn from at most `draws` times."""
    low, high = 0, order.params.max_steps
    while low < high:
        middle = (low + high + 1) // 2
        if mixed.draws.counts(rows_before(order.params, middle))[source] <= draws:
            low = middle
        else:
            high = middle - 1
    return low


def describe(order: RowOrder) -> Iterator[str]:
    """A line for each source of a mixture, and one for what is left out; none without a mixture."""
    if (mixed := order.mixed) is None:
        return
    by_phase = shares_by_phase(order)
    shares = by_phase.pop(WHOLE_RUN)
    for source in mixed.sources:
        of_run = shares[source.name]
        by = ", ".join(f"{found[source.name].share:.1%} in {steps}" for steps, found in by_phase.items())
        yield (
            f"mixture: {source.name}: {of_run.share:.2%} of the tokens{f' ({by})' if by else ''}, "
            f"{of_run.epochs:.2f} epochs of {source.targets:,} tokens in {source.documents:,} documents"
        )
    if (left := mixed.left_out).documents:
        yield f"mixture: {left.documents:,} documents ({left.stored_tokens:,} tokens) have no weight: left out"
