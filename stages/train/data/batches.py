"""Which rows a step trains on, and their tokens. A pure function of (seed, step): nothing to save, nothing to skip.

Step s takes the places s * global_batch_size + k of the concatenated permutations of all epochs. Ranks slice the global
batch, so the order does not hang on how many there are.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stages.formats.tokens import TokenStore
from stages.train.data.packing import PackingIndex

IGNORED = -100
"""The target of a padded position (torch's cross_entropy leaves it out)."""


@dataclass(frozen=True)
class Batch:
    """Rows ready for the model; each array has the shape (rows, sequence_length), int64."""

    inputs: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    """The token that follows each input, `IGNORED` where a row is padded."""
    positions: npt.NDArray[np.int64]
    """Of each input in its stretch of a document: 0 where a row or a document begins."""

    @property
    def target_count(self) -> int:
        """Targets that count."""
        return int((self.targets != IGNORED).sum())


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, rows: int) -> npt.NDArray[np.int64]:
    """The permutation of the rows in one epoch (numpy's PCG64, keyed by seed and epoch)."""
    return np.random.default_rng([seed, epoch]).permutation(rows)


def rows_of_step(seed: int, step: int, global_batch_size: int, rows: int) -> npt.NDArray[np.int64]:
    """The rows of the global batch of `step`, in order; shape (global_batch_size,)."""
    places = np.arange(step * global_batch_size, (step + 1) * global_batch_size)
    return np.array([epoch_order(seed, int(place) // rows, rows)[int(place) % rows] for place in places])


def read_rows(store: TokenStore, index: PackingIndex, rows: npt.NDArray[np.int64], sequence_length: int) -> Batch:
    """Gather rows from the store. The input of a document's first target is the end-of-sequence id before it."""
    inputs = np.full((len(rows), sequence_length), store.manifest.eos_id, dtype=np.int64)
    targets = np.full((len(rows), sequence_length), IGNORED, dtype=np.int64)
    begins = np.zeros((len(rows), sequence_length), dtype=np.bool_)
    for place, row in enumerate(rows):
        column = 0
        for start, length in index.segments(int(row)):
            stretch = store.read(max(start - 1, 0), start + length)
            targets[place, column : column + length] = stretch[-length:]
            inputs[place, column + length - len(stretch) + 1 : column + length] = stretch[:-1]
            first, stop = np.searchsorted(store.document_starts, [start + 1, start + length])
            begins[place, column] = True
            begins[place, column + store.document_starts[first:stop] - start] = True
            column += length
    columns = np.arange(sequence_length)
    return Batch(inputs, targets, columns - np.maximum.accumulate(np.where(begins, columns, 0), axis=1))


def read_ahead(
    store: TokenStore, index: PackingIndex, wanted: Iterable[npt.NDArray[np.int64]], sequence_length: int
) -> Iterator[Batch]:
    """`read_rows` of each item, read in a thread while the one before is in use."""
    with ThreadPoolExecutor(1, "batches") as thread:
        coming = None
        for rows in wanted:
            current, coming = coming, thread.submit(read_rows, store, index, rows, sequence_length)
            if current is not None:
                yield current.result()
        if coming is not None:
            yield coming.result()
