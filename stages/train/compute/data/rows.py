"""Training rows: where their tokens are in the store, and how they are read.

A row has `sequence_length` targets. A document of n tokens gives n targets: each token is predicted from those before
it, the first one from the end-of-sequence id that closes the previous document. The stream of documents is cut every
`sequence_length` tokens, so row r begins at token r * sequence_length of the store; the rest at the end is not trained
on. Under a mixture (`mixed.py`) each source is a separate stream, whose rows need an index.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from stages.formats.tokens import TokenStore

Integers = npt.NDArray[np.int64]

Permutation = npt.NDArray[np.uint32]
"""32 bits, because a process holds a number for each row of an epoch."""


class Span(NamedTuple):
    """A span of targets in the store."""

    start: int
    """Position of the first target."""
    length: int
    """Targets."""


def permutation(key: Sequence[int], rows: int) -> Permutation:
    """A permutation of the numbers 0..rows, by numpy's PCG64 seeded with `key`."""
    numbers = np.arange(rows, dtype=np.uint32)
    np.random.default_rng(key).shuffle(numbers)
    return numbers


class RowIndex(Protocol):
    """Where the tokens of each row are."""

    @property
    def rows(self) -> int:
        """Training rows in an epoch."""

    def spans(self, row: int) -> list[Span]:
        """The spans of the store that form a row."""


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
    """Rows ready for the model; all arrays have shape (rows, sequence_length), int64."""

    inputs: Integers
    targets: Integers
    """The token that follows each input."""
    positions: Integers
    """The position of each input in its document or span, which begins at 0."""


def read_rows(store: TokenStore, index: RowIndex, rows: Integers, sequence_length: int) -> Rows:
    """Gather rows from the store.

    Example: documents `a b E` and `c E`, where E is the end-of-sequence id, give one row of 5 targets. A document's
    first token is predicted from the E that closes the previous document (the first document's too, although nothing
    is stored before it):

        targets    a  b  E  c  E
        inputs     E  a  b  E  c
        positions  0  1  2  0  1

    Under a mixture the documents of a source are not adjacent in the store, so a row can have several spans.
    """
    inputs = np.full((len(rows), sequence_length), store.manifest.eos_id, dtype=np.int64)
    targets = np.empty((len(rows), sequence_length), dtype=np.int64)
    begins = np.zeros((len(rows), sequence_length), dtype=np.bool_)
    for line, row in enumerate(rows):
        column = 0
        for start, length in index.spans(int(row)):
            # One token more than there are targets, except at the start of the store, where the input stays E.
            ids = store.read(max(start - 1, 0), start + length)
            targets[line, column : column + length] = ids[-length:]
            inputs[line, column + length - len(ids) + 1 : column + length] = ids[:-1]
            # Positions restart at 0 with the span and with each document in it.
            begins[line, column] = True
            begins[line, column + store.starts_within(start, start + length) - start] = True
            column += length
    # Each column minus the last beginning at or before it.
    columns = np.arange(sequence_length)
    positions = columns - np.maximum.accumulate(np.where(begins, columns, 0), axis=1)
    return Rows(inputs, targets, positions)
