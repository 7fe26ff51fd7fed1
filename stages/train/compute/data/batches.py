"""The rows of a run, their tokens, and the micro-batches of a step (`order.py` says which rows those are).

A row has `sequence_length` targets. A document of n tokens gives n targets: each of its tokens is predicted from those
before it, the first one from the end-of-sequence id that closes the document before. The stream of documents is cut
every `sequence_length` tokens; the rest at its end is not trained on. What makes up a row is an index, never a copy.

Each process takes its slice of a global batch in micro-batches, read ahead in a thread, so the order does not depend on
the number of processes.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stages.formats.tokens import TokenStore
from stages.train.compute.params import ComputingParams

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


def pack_rows(store: TokenStore, sequence_length: int) -> PackingIndex:
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


def joined_indexes(indexes: list[PackingIndex]) -> PackingIndex:
    """Join indexes into one, in their order."""
    shifts = np.cumulative_sum([len(index.starts) for index in indexes], include_initial=True)
    offsets = [index.offsets[1:] + shift for index, shift in zip(indexes, shifts[:-1], strict=True)]
    return PackingIndex(
        starts=np.concatenate([index.starts for index in indexes]),
        lengths=np.concatenate([index.lengths for index in indexes]),
        offsets=np.concatenate([np.zeros(1, dtype=np.int64), *offsets]),
    )


@dataclass(frozen=True)
class Rows:
    """Rows ready for the model; all of the shape (rows, sequence_length), int64."""

    inputs: Integers
    targets: Integers
    """The token that follows each input."""
    positions: Integers
    """The position of each input in its document or segment, which begins at 0."""


def read_rows(store: TokenStore, index: PackingIndex, rows: Integers, sequence_length: int) -> Rows:
    """Gather rows from the store.

    Five tokens as an example: documents `a b E` and `c E`, where E is the end-of-sequence id, give one row of 5
    targets. A document's first token is predicted from the E that closes the document before it (also the first
    document's, although nothing is stored before it):

        targets    a  b  E  c  E
        inputs     E  a  b  E  c
        positions  0  1  2  0  1

    Under a mixture the documents of a source are not neighbours in the store, so a row can have several segments.
    """
    inputs = np.full((len(rows), sequence_length), store.manifest.eos_id, dtype=np.int64)
    targets = np.empty((len(rows), sequence_length), dtype=np.int64)
    begins = np.zeros((len(rows), sequence_length), dtype=np.bool_)
    for line, row in enumerate(rows):
        column = 0
        for start, length in index.segments(int(row)):
            # One token more than there are targets, except at the start of the store: there the input stays E.
            span = store.read(max(start - 1, 0), start + length)
            targets[line, column : column + length] = span[-length:]
            inputs[line, column + length - len(span) + 1 : column + length] = span[:-1]
            begins[line, column] = True
            # Documents that begin within the segment: their first targets are where positions count from 0 again.
            first, stop = np.searchsorted(store.document_starts, [start + 1, start + length])
            begins[line, column + store.document_starts[first:stop] - start] = True
            column += length
    # Each column minus the last column at or before it where something begins.
    columns = np.arange(sequence_length)
    positions = columns - np.maximum.accumulate(np.where(begins, columns, 0), axis=1)
    return Rows(inputs, targets, positions)


@dataclass(frozen=True)
class MicroBatch:
    """Some rows of a step's global batch, and what a step must know of them."""

    rows: Rows
    step: int
    """From 0."""
    first_row: int
    """Index of its first row in the global batch."""
    is_last: bool
    """True for the last micro-batch of the step in this process."""


@dataclass(frozen=True)
class ProcessShare:
    """The contiguous part of each global batch that a process takes, and the number of sequences in a piece."""

    process: int
    processes: int
    micro_batch_size: int


def micro_batches(
    store: TokenStore,
    index: PackingIndex,
    rows_of_step: Callable[[int], Integers],
    params: ComputingParams,
    share: ProcessShare,
    steps: range,
    pin: Callable[[Rows], Rows] = lambda rows: rows,
) -> Iterator[MicroBatch]:
    """A process's micro-batches of some steps; `pin` is called on the rows of each, in the thread that reads them."""

    def read(rows: Integers, step: int, first_row: int, is_last: bool) -> MicroBatch:
        read = pin(read_rows(store, index, rows, params.sequence_length))
        return MicroBatch(read, step, first_row, is_last)

    with ThreadPoolExecutor(1, "batches") as thread:
        coming: Future[MicroBatch] | None = None
        for step in steps:
            rows = rows_of_step(step)
            each = len(rows) // share.processes
            own = range(share.process * each, (share.process + 1) * each)
            for first in own[:: share.micro_batch_size]:
                stop = min(first + share.micro_batch_size, own.stop)
                current = coming
                coming = thread.submit(read, rows[first:stop], step, first, stop == own.stop)
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
