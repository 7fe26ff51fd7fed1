"""The order of a run's data: which rows each step trains on.

It is a pure function of (seed, step), so there is nothing to save and nothing to skip. The concatenated permutations of
all epochs are cut into global batches.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from stages.formats.tokens import TokenStore
from stages.train.compute.data.mixed import MixedOrder, open_mixed_order
from stages.train.compute.data.rows import ConsecutiveRows, Integers, Permutation, pack_rows, permutation
from stages.train.compute.params import DataOrder


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, rows: int) -> Permutation:
    """The permutation of the rows in one epoch."""
    return permutation([seed, epoch], rows)


@dataclass(frozen=True)
class RowOrder:
    """The order in which a run trains on the rows of a whole store."""

    params: DataOrder
    index: ConsecutiveRows

    def rows_of_step(self, step: int) -> Integers:
        """The rows of the global batch of `step` (from 0), in order; shape (global_batch_size,)."""
        seed, rows = self.params.seed, self.index.rows
        drawn = [epoch_order(seed, draw // rows, rows)[draw % rows] for draw in self.params.draws_of_step(step)]
        return np.array(drawn, dtype=np.int64)


AnyOrder: TypeAlias = RowOrder | MixedOrder


def open_order(store: TokenStore, params: DataOrder) -> AnyOrder:
    """The order of a run over a store. Raises UserError if the store lacks a source of the mixture."""
    if params.mixture is not None:
        return open_mixed_order(store, params, params.mixture)
    return RowOrder(params, pack_rows(store, params.sequence_length))
