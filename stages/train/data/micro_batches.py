"""What each forward pass of a process takes, in the order of training, read ahead in a thread."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from stages.formats.tokens import TokenStore
from stages.train.data.batches import Rows, batch_size, read_rows, rows_of_step
from stages.train.data.packing import Integers, PackingIndex
from stages.train.params import TrainParams

Item = TypeVar("Item")


@dataclass(frozen=True)
class MicroBatch:
    """Some rows of a step's global batch, and what a step must know of them."""

    rows: Rows
    step: int
    """From 0."""
    first_row: int
    """Index of its first row in the global batch."""
    is_last: bool
    """Whether it is this process's last one of the step."""
    step_targets: int
    """Targets of the whole global batch, by which the loss is divided."""


@dataclass(frozen=True)
class Share:
    """Which part of each global batch a process takes, and in pieces of how many sequences."""

    process: int
    processes: int
    micro_batch_size: int


def micro_batches(
    store: TokenStore, index: PackingIndex, params: TrainParams, share: Share, first_step: int
) -> Iterator[MicroBatch]:
    """A process's micro-batches from `first_step` on."""

    def reads() -> Iterator[Callable[[], MicroBatch]]:
        for step in range(first_step, params.max_steps):
            rows = rows_of_step(params.seed, step, params, index.rows)
            targets, size = index.target_count(rows), batch_size(params, step)
            for first, stop in slices(size, share):
                is_last = stop == own_rows(size, share).stop
                yield partial(read, rows[first:stop], step, first, is_last, targets)

    def read(rows: Integers, step: int, first_row: int, is_last: bool, step_targets: int) -> MicroBatch:
        read = read_rows(store, index, rows, params.sequence_length)
        return MicroBatch(read, step, first_row, is_last, step_targets)

    return read_ahead(reads())


def own_rows(global_batch_size: int, share: Share) -> range:
    """The indices in the global batch that a process takes: a contiguous block."""
    each = global_batch_size // share.processes
    return range(share.process * each, (share.process + 1) * each)


def slices(global_batch_size: int, share: Share) -> list[tuple[int, int]]:
    """Start and stop of each of a process's micro-batches in the global batch."""
    own = own_rows(global_batch_size, share)
    return [(first, min(first + share.micro_batch_size, own.stop)) for first in own[:: share.micro_batch_size]]


def read_ahead(reads: Iterable[Callable[[], Item]]) -> Iterator[Item]:
    """What each call returns, in order; the next one runs in a thread while the one before is in use."""
    with ThreadPoolExecutor(1, "batches") as thread:
        coming = None
        for read in reads:
            current, coming = coming, thread.submit(read)
            if current is not None:
                yield current.result()
        if coming is not None:
            yield coming.result()


def dropout_seed(seed: int, batch: MicroBatch) -> int:
    """The seed of a micro-batch's dropout: numpy's SeedSequence of (seed, step, index of its first row).

    It depends neither on the process nor on what ran before, but on where micro-batches begin: dropout masks are the
    same on other numbers of processes only where the micro-batches are (`deterministic_micro_batch_size`).
    """
    return int(np.random.SeedSequence([seed, batch.step, batch.first_row]).generate_state(1, np.uint64)[0])
