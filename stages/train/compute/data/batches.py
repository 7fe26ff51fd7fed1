"""The micro-batches of a step. Each process reads its slice of a global batch ahead, in a thread.

The order of the data therefore does not depend on the number of processes.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from stages.formats.tokens import TokenStore
from stages.train.compute.data.order import AnyOrder
from stages.train.compute.data.rows import Integers, Rows, read_rows
from stages.train.compute.params import ComputingParams


@dataclass(frozen=True)
class MicroBatch:
    """Some rows of a step's global batch."""

    rows: Rows
    step: int
    """From 0."""
    first_row: int
    """Index of its first row in the global batch."""
    is_last: bool
    """True for the last micro-batch of the step in this process."""


@dataclass(frozen=True)
class ProcessShare:
    """The contiguous part of each global batch that a process takes, in pieces of `micro_batch_size` sequences."""

    process: int
    processes: int
    micro_batch_size: int


def micro_batches(
    store: TokenStore,
    order: AnyOrder,
    params: ComputingParams,
    share: ProcessShare,
    steps: range,
    pin: Callable[[Rows], Rows] = lambda rows: rows,
) -> Iterator[MicroBatch]:
    """Yield a process's micro-batches of some steps; `pin` is applied to the rows of each in the reading thread."""

    def read(rows: Integers, step: int, first_row: int, is_last: bool) -> MicroBatch:
        pinned = pin(read_rows(store, order.index, rows, params.sequence_length))
        return MicroBatch(pinned, step, first_row, is_last)

    with ThreadPoolExecutor(1, "batches") as thread:
        coming: Future[MicroBatch] | None = None
        for step in steps:
            rows = order.rows_of_step(step)
            each = len(rows) // share.processes
            part = range(share.process * each, (share.process + 1) * each)
            for first in part[:: share.micro_batch_size]:
                stop = min(first + share.micro_batch_size, part.stop)
                current = coming
                coming = thread.submit(read, rows[first:stop], step, first, stop == part.stop)
                if current is not None:
                    yield current.result()
        if coming is not None:
            yield coming.result()


def dropout_seed(seed: int, batch: MicroBatch) -> int:
    """The seed of a micro-batch's dropout: numpy's SeedSequence of (seed, step, index of its first row).

    It depends on where micro-batches begin, so dropout masks are independent of the number of processes only if the
    micro-batches are (`deterministic_micro_batch_size`).
    """
    return int(np.random.SeedSequence([seed, batch.step, batch.first_row]).generate_state(1, np.uint64)[0])
