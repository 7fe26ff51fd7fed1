"""Best-fit packing of many documents at once is that of one document after the other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stages.train.data.best_fit import fill_gaps
from stages.train.data.packing import pack

Segment = tuple[int, int]
"""Start and length."""


@given(st.integers(2, 30), st.lists(st.integers(1, 70), max_size=60))
def test_an_index_is_that_of_documents_packed_one_after_the_other(sequence_length: int, lengths: list[int]) -> None:
    starts = [sum(lengths[:place]) for place in range(len(lengths))]

    index = pack(np.array(starts, np.int64), np.array(lengths, np.int64), sequence_length, "best_fit")

    rows, remainders = [], []
    for start, length in zip(starts, lengths, strict=True):
        whole = length - length % sequence_length
        rows += [[(start + cut, sequence_length)] for cut in range(0, whole, sequence_length)]
        remainders += [(start + whole, length - whole)] if length > whole else []
    rows += filled(best_fit_decreasing(remainders, sequence_length), sequence_length)
    assert [[tuple(segment) for segment in index.segments(row)] for row in range(index.rows)] == rows


def best_fit_decreasing(remainders: list[Segment], sequence_length: int) -> list[list[Segment]]:
    rows: list[list[Segment]] = []
    by_space: list[tuple[int, int]] = []  # space and row, the one that got it last at the end
    for start, length in sorted(remainders, key=lambda one: (-one[1], one[0])):
        best = min((space for space, _ in by_space if space >= length), default=None)
        if best is None:
            best, row = sequence_length, len(rows)
            rows.append([])
        else:
            row = [number for space, number in by_space if space == best][-1]
            by_space.remove((best, row))
        rows[row].append((start, length))
        by_space.append((best - length, row))
    return rows


def filled(rows: list[list[Segment]], sequence_length: int) -> list[list[Segment]]:
    waiting = sorted(rows, key=lambda row: -sum(length for _, length in row))
    pieces: list[Segment] = []
    full: list[list[Segment]] = []
    while waiting or pieces:
        row = waiting.pop(0) if waiting else []
        space = sequence_length - sum(length for _, length in row)
        while space and (pieces or waiting):
            pieces = pieces or waiting.pop()
            start, length = pieces.pop()
            row = [*row, (start, min(length, space))]
            if length > space:
                pieces.append((start + space, length - space))
            space -= min(length, space)
        full.append(row)
    return full


def test_the_worked_example_of_filling_gaps() -> None:
    kept, edges = fill_gaps(np.array([1, 2, 3]), 5)
    assert (kept, edges.tolist()) == (2, [0, 1, 2])
