"""Training rows: where their tokens are in the store, and how they are read.

A row has `sequence_length` targets. A document of n tokens gives n targets: each of its tokens is predicted from those
before it, the first one from the end-of-sequence id that closes the document before. The stream of documents is cut
every `sequence_length` tokens; the rest at its end is not trained on. So row r begins at token r * sequence_length of
the store; under a mixture (`mixed.py`) each source is a stream of its own, whose rows need an index.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from stages.formats.tokens import TokenStore

Integers = npt.NDArray[np.int64]

Permutation = npt.NDArray[np.uint32]
"""Half the bytes of `Integers`: a process holds a number for each row of an epoch."""


class Span(NamedTuple):
    """A span of targets in the store."""

    start: int
    """Position of the first target."""
    length: int
    """Targets."""


def permutation(key: Sequence[int], rows: int) -> Permutation:
    """A permutation of the numbers of the rows, by numpy's PCG64 with that key."""
    numbers = np.arange(rows, dtype=np.uint32)
    np.random.default_rng(key).shuffle(numbers)
    return numbers


class RowIndex(Protocol):
    """Where the tokens of each row are."""

    @property
    def rows(self) -> int:
        """Training rows in an epoch."""

    def spans(self, row: int) -> list[Span]:
        """The spans of the store that make up a row."""


@dataclass(frozen=True)
class ConsecutiveRows:
    """The rows of a whole store, one after the other."""

    rows: int
    sequence_length: int

    def spans(self, row: int) -> list[Span]:
        """One span: as `RowIndex.spans`."""
        return [Span(row * self.sequence_length, self.sequence_length)]


def pack_rows(store: TokenStore, sequence_length: int) -> ConsecutiveRows:
    """The rows of a whole store."""
    return ConsecutiveRows(store.manifest.tokens // sequence_length, sequence_length)


@dataclass(frozen=True)
class Rows:
    """Rows ready for the model; all of the shape (rows, sequence_length), int64."""

    inputs: Integers
    targets: Integers
    """The token that follows each input."""
    positions: Integers
    """The position of each input in its document or span, which begins at 0."""


def read_rows(store: TokenStore, index: RowIndex, rows: Integers, sequence_length: int) -> Rows:
    """Gather rows from the store.

    Five tokens as an example: documents `a b E` and `c E`, where E is the end-of-sequence id, give one row of 5
    targets. A document's first token is predicted from the E that closes the document before it (also the first
    document's, although nothing is stored before it):

        targets    a  b  E  c  E
        inputs     E  a  b  E  c
        positions  0  1  2  0  1

    Under a mixture the documents of a source are not neighbours in the store, so a row can have several spans.
    """
    inputs = np.full((len(rows), sequence_length), store.manifest.eos_id, dtype=np.int64)
    targets = np.empty((len(rows), sequence_length), dtype=np.int64)
    begins = np.zeros((len(rows), sequence_length), dtype=np.bool_)
    for line, row in enumerate(rows):
        column = 0
        for start, length in index.spans(int(row)):
            # One token more than there are targets, except at the start of the store: there the input stays E.
            ids = store.read(max(start - 1, 0), start + length)
            targets[line, column : column + length] = ids[-length:]
            inputs[line, column + length - len(ids) + 1 : column + length] = ids[:-1]
            # Positions count from 0 again where the span begins, and where a document begins within it.
            begins[line, column] = True
            begins[line, column + store.starts_within(start, start + length) - start] = True
            column += length
    # Each column minus the last column at or before it where something begins.
    columns = np.arange(sequence_length)
    positions = columns - np.maximum.accumulate(np.where(begins, columns, 0), axis=1)
    return Rows(inputs, targets, positions)
