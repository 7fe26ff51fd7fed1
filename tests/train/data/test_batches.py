"""Order, packing, schedule, deterministic sums: the parts whose arithmetic must hold for all inputs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.formats.tokens import TokenStore
from stages.train.data import packing
from stages.train.data.batches import (
    IGNORED,
    DataOrder,
    MicroBatch,
    ProcessShare,
    batch_size,
    dropout_seed,
    micro_batches,
    read_rows,
    rows_before,
    rows_of_step,
)
from stages.train.data.best_fit import fill_gaps
from stages.train.data.order import open_order
from stages.train.data.packing import build_packing, open_packing, pack
from stages.train.parallel import BinaryTree
from stages.train.params import Schedule, TrainParams
from tests.train.small_run import params, write_project


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    folder = write_project(tmp_path_factory.mktemp("store"))
    return TokenStore(folder / "data/tokens/train")


def batch_of(first: int, doublings: list[int]) -> DataOrder:
    """Batches of `first` rows, twice as many after each of some steps."""
    return DataOrder(
        seed=3,
        max_steps=60,
        global_batch_size=first,
        batch_doublings=doublings,
        sequence_length=32,
        packing="best_fit",
    )


batches = st.builds(batch_of, st.integers(1, 20), st.lists(st.integers(1, 40), max_size=3, unique=True).map(sorted))


@given(seed=st.integers(0, 5), step=st.integers(0, 40), batch=batches, rows=st.integers(1, 50))
def test_the_order_is_a_permutation_of_the_rows_in_every_epoch(
    seed: int, step: int, batch: DataOrder, rows: int
) -> None:
    epochs = np.concatenate([rows_of_step(seed, s, batch, rows) for s in range(step + 1)])
    for first in range(0, len(epochs), rows):
        epoch = epochs[first : first + rows]
        assert len(set(epoch.tolist())) == len(epoch)
        assert epoch.max(initial=0) < rows


@given(step=st.integers(0, 40))
def test_a_step_needs_no_step_before_it(step: int) -> None:
    again = [rows_of_step(3, s, batch_of(8, [20]), 30).tolist() for s in range(step + 1)]
    assert rows_of_step(3, step, batch_of(8, [20]), 30).tolist() == again[-1]


def test_the_worked_example_of_a_batch_that_doubles() -> None:
    batch = batch_of(4, [3])
    assert [batch_size(batch, step) for step in range(5)] == [4, 4, 4, 8, 8]
    assert [rows_before(batch, step) for step in range(5)] == [0, 4, 8, 12, 20]


@given(batch=batches, step=st.integers(0, 60))
def test_the_rows_before_a_step_are_those_of_all_steps_before_it(batch: DataOrder, step: int) -> None:
    assert rows_before(batch, step) == sum(batch_size(batch, earlier) for earlier in range(step))
    passed = [doubling for doubling in batch.batch_doublings if doubling <= step]
    assert batch_size(batch, step) == batch.global_batch_size * 2 ** len(passed)


@settings(deadline=None, max_examples=20)
@given(sequence_length=st.integers(2, 200))
def test_best_fit_trains_on_every_token_once_and_pads_one_row_at_most(store: TokenStore, sequence_length: int) -> None:
    index = build_packing(store, sequence_length, "best_fit")
    targets = np.zeros(store.manifest.tokens, dtype=np.int64)
    padded = 0
    for row in range(index.rows):
        segments = index.segments(row)
        for start, length in segments:
            targets[start : start + length] += 1
        padded += sum(segment.length for segment in segments) < sequence_length
    assert (targets == 1).all()
    assert padded <= 1


def test_the_index_of_a_large_store_is_built_once_and_mapped(
    store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(packing, "KEPT_FROM_DOCUMENTS", store.manifest.documents)
    expected = build_packing(store, 32, "best_fit")
    first = open_packing(store, 32, "best_fit")
    monkeypatch.setattr(packing, "best_fit", lambda *of: pytest.fail("built again"))
    for index in (first, open_packing(store, 32, "best_fit")):
        for name in packing.ARRAYS:
            assert isinstance(getattr(index, name), np.memmap)
            assert (getattr(index, name) == getattr(expected, name)).all()


def test_a_row_predicts_each_token_from_the_one_before_it(store: TokenStore) -> None:
    index = build_packing(store, 32, "best_fit")
    stream = store.read(0, store.manifest.tokens)
    batch = read_rows(store, index, np.arange(index.rows), 32)
    for row in range(index.rows):
        column = 0
        for start, length in index.segments(row):
            assert (batch.targets[row, column : column + length] == stream[start : start + length]).all()
            assert (batch.inputs[row, column + 1 : column + length] == stream[start : start + length - 1]).all()
            before = stream[start - 1] if start else store.manifest.eos_id
            assert batch.inputs[row, column] == before
            column += length
        assert (batch.targets[row, column:] == IGNORED).all()


@given(
    name=st.sampled_from(["cosine", "linear", "constant", "wsd"]),
    warmup=st.integers(0, 50),
    final=st.floats(0, 1),
    decay=st.floats(0, 1),
    steps=st.integers(1, 200),
)
def test_a_rate_grows_to_its_peak_and_never_leaves_its_bounds(
    name: str, warmup: int, final: float, decay: float, steps: int
) -> None:
    schedule = Schedule.model_validate(
        {"name": name, "warmup_steps": warmup, "final_share": final, "decay_share": decay}
    )
    shares = [schedule.multiplier(step, steps) for step in range(steps)]
    assert all(0 <= share <= 1 + 1e-12 for share in shares)
    assert shares[:warmup] == sorted(shares[:warmup])
    assert shares[warmup:] == sorted(shares[warmup:], reverse=True)


def test_wsd_decays_in_its_share_of_all_steps() -> None:
    schedule = Schedule(name="wsd", warmup_steps=20, final_share=0.0, decay_share=0.2)
    shares = [schedule.multiplier(step, 1000) for step in range(1000)]
    assert shares[20:801] == [1.0] * 781
    assert shares[801:] == [(1000 - step) / 200 for step in range(801, 1000)]
    assert schedule.plateau_end(1000) == 800


@given(decay=st.floats(0, 1), steps=st.integers(2, 200), more=st.integers(0, 200), warmup=st.integers(0, 50))
def test_up_to_the_end_of_the_plateau_a_longer_run_has_the_same_rates(
    decay: float, steps: int, more: int, warmup: int
) -> None:
    schedule = Schedule.model_validate(
        {"name": "wsd", "warmup_steps": warmup, "final_share": 0.0, "decay_share": decay}
    )
    for step in range(min(steps, schedule.plateau_end(steps))):
        assert schedule.multiplier(step, steps) == schedule.multiplier(step, steps + more)


@given(height=st.integers(0, 5), split=st.integers(0, 5), seed=st.integers(0, 100))
def test_a_tree_sum_has_the_same_bits_however_it_is_split(height: int, split: int, seed: int) -> None:
    parts = torch.randn(2**height, 7, generator=torch.Generator().manual_seed(seed))
    alone = BinaryTree()
    for part in parts:
        alone.add([part.clone()])
    upper = BinaryTree()
    for block in parts.chunk(2 ** min(split, height)):
        own = BinaryTree()
        for part in block:
            own.add([part.clone()])
        upper.add(own.result())
    assert torch.equal(alone.result()[0], upper.result()[0])


@settings(deadline=None, max_examples=20)
@given(
    processes=st.sampled_from([1, 2, 4]),
    size=st.integers(1, 9),
    first_step=st.integers(0, 3),
    doublings=st.sampled_from([[], [2], [1, 3]]),
)
def test_the_micro_batches_of_all_processes_are_the_rows_of_each_step(
    store: TokenStore, processes: int, size: int, first_step: int, doublings: list[int]
) -> None:
    values = TrainParams.model_validate(params(sequence_length=32, max_steps=4, batch_doublings=doublings))
    order = open_order(store, values)
    shares = [ProcessShare(process, processes, size) for process in range(processes)]
    every = [list(micro_batches(store, order, values, share, range(first_step, values.max_steps))) for share in shares]
    for step in range(first_step, 4):
        of_step = [[batch for batch in batches if batch.step == step] for batches in every]
        rows = rows_of_step(values.seed, step, values, order.index.rows)
        together = np.concatenate([batch.rows.targets for batches in of_step for batch in batches])
        assert (together == read_rows(store, order.index, rows, 32).targets).all()
        for process, batches in enumerate(of_step):
            assert [batch.is_last for batch in batches] == [False] * (len(batches) - 1) + [True]
            assert {batch.step_targets for batch in batches} == {order.index.target_count(rows)}
            first = process * len(rows) // processes
            assert [batch.first_row for batch in batches] == [first + size * number for number in range(len(batches))]


def test_the_seed_of_dropout_is_a_stated_function(store: TokenStore) -> None:
    """numpy's SeedSequence, whose values numpy keeps (NEP 19); Python's `hash` of a tuple may change."""
    rows = read_rows(store, build_packing(store, 32, "best_fit"), np.array([0]), 32)
    assert dropout_seed(7, MicroBatch(rows, 2, 4, True, 1)) == 13787687309989359358
    seeds = {dropout_seed(s, MicroBatch(rows, t, r, True, 1)) for s in (0, 1) for t in (0, 1) for r in (0, 8)}
    assert len(seeds) == 8


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
