"""Order, packing, schedule, deterministic sums: the parts whose arithmetic must hold for all inputs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.formats.tokens import TokenStore
from stages.train.data import packing
from stages.train.data.batches import IGNORED, batch_size, read_rows, rows_before, rows_of_step
from stages.train.data.packing import build_packing, open_packing
from stages.train.parallel import BinaryTree
from stages.train.params import Schedule
from tests.train.small_run import write_project


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    folder = write_project(tmp_path_factory.mktemp("store"))
    return TokenStore(folder / "data/tokens/train")


@dataclass
class Batch:
    """The size of each step's batch, as in the `train` section."""

    global_batch_size: int
    batch_doublings: list[int]


batches = st.builds(
    Batch,
    global_batch_size=st.integers(1, 20),
    batch_doublings=st.lists(st.integers(1, 40), max_size=3, unique=True).map(sorted),
)


@given(seed=st.integers(0, 5), step=st.integers(0, 40), batch=batches, rows=st.integers(1, 50))
def test_the_order_is_a_permutation_of_the_rows_in_every_epoch(seed: int, step: int, batch: Batch, rows: int) -> None:
    epochs = np.concatenate([rows_of_step(seed, s, batch, rows) for s in range(step + 1)])
    for first in range(0, len(epochs), rows):
        epoch = epochs[first : first + rows]
        assert len(set(epoch.tolist())) == len(epoch)
        assert epoch.max(initial=0) < rows


@given(step=st.integers(0, 40))
def test_a_step_needs_no_step_before_it(step: int) -> None:
    again = [rows_of_step(3, s, Batch(8, [20]), 30).tolist() for s in range(step + 1)]
    assert rows_of_step(3, step, Batch(8, [20]), 30).tolist() == again[-1]


def test_the_worked_example_of_a_batch_that_doubles() -> None:
    batch = Batch(4, [3])
    assert [batch_size(batch, step) for step in range(5)] == [4, 4, 4, 8, 8]
    assert [rows_before(batch, step) for step in range(5)] == [0, 4, 8, 12, 20]


@given(batch=batches, step=st.integers(0, 60))
def test_the_rows_before_a_step_are_those_of_all_steps_before_it(batch: Batch, step: int) -> None:
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
