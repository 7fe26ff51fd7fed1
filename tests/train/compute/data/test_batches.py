"""Order, packing, schedule, deterministic sums: the parts whose arithmetic must hold for all inputs."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.formats.tokens import Manifest, ShardEntry, TokenStore
from stages.train.compute.data.batches import MicroBatch, ProcessShare, dropout_seed, micro_batches
from stages.train.compute.data.mixed import pack_documents
from stages.train.compute.data.order import RowOrder, epoch_order, open_order
from stages.train.compute.data.rows import ConsecutiveRows, pack_rows, permutation, read_rows
from stages.train.compute.deterministic import BinaryTree
from stages.train.compute.params import DataOrder
from stages.train.compute.schedule import Schedule
from stages.train.params import TrainParams
from tests.train.small_run import params, write_project


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    folder = write_project(tmp_path_factory.mktemp("store"))
    return TokenStore(folder / "data/tokens/train")


def order_of(rows: int, size: int = 8, seed: int = 3) -> RowOrder:
    params = DataOrder(seed=seed, max_steps=60, global_batch_size=size, sequence_length=32, mixture=None)
    return RowOrder(params, ConsecutiveRows(rows, 32))


@given(seed=st.integers(0, 5), step=st.integers(0, 40), size=st.integers(1, 20), rows=st.integers(1, 50))
def test_the_order_is_a_permutation_of_the_rows_in_every_epoch(seed: int, step: int, size: int, rows: int) -> None:
    order = order_of(rows, size, seed)
    epochs = np.concatenate([order.rows_of_step(s) for s in range(step + 1)])
    for first in range(0, len(epochs), rows):
        epoch = epochs[first : first + rows]
        assert len(set(epoch.tolist())) == len(epoch)
        assert epoch.max(initial=0) < rows


@given(seed=st.integers(0, 9), epoch=st.integers(0, 3), rows=st.integers(1, 400))
def test_a_permutation_is_numpys(seed: int, epoch: int, rows: int) -> None:
    assert permutation([seed, epoch], rows).tolist() == np.random.default_rng([seed, epoch]).permutation(rows).tolist()


def test_a_process_holds_four_bytes_for_each_row_of_an_epoch() -> None:
    """100 billion tokens in rows of 2,048 are 195 MB. A tenth of them:"""
    rows = 10**10 // 2048
    tracemalloc.start()
    order = order_of(rows)
    order.rows_of_step(0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    epoch_order.cache_clear()
    assert order.index.spans(rows - 1) == [((rows - 1) * 32, 32)]
    assert most < 4 * rows + 100_000


def test_rows_are_read_without_a_table_of_all_documents(tmp_path: Path) -> None:
    documents, length = 200_000, 4
    np.zeros(documents * length, dtype="<u2").tofile(tmp_path / "s.tokens.bin")
    (np.arange(documents + 1, dtype="<i8") * length).tofile(tmp_path / "s.offsets.bin")
    shard = ShardEntry("s", documents, documents * length, bytes=0, sha256={})
    (tmp_path / "manifest.json").write_text(Manifest("uint16", 300, 0, "", "", (shard,)).to_json())
    store = TokenStore(tmp_path)
    tracemalloc.start()
    batch = read_rows(store, pack_rows(store, 32), np.array([0, 24_999]), 32)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert batch.positions.tolist() == [list(range(length)) * 8] * 2
    assert most < documents


def test_a_row_predicts_each_token_from_the_one_before_it(store: TokenStore) -> None:
    index = pack_rows(store, 32)
    assert 0 <= store.manifest.tokens - index.rows * 32 < 32
    stream = store.read(0, store.manifest.tokens)
    batch = read_rows(store, index, np.arange(index.rows), 32)
    for row in range(index.rows):
        column = 0
        for start, length in index.spans(row):
            assert (batch.targets[row, column : column + length] == stream[start : start + length]).all()
            assert (batch.inputs[row, column + 1 : column + length] == stream[start : start + length - 1]).all()
            before = stream[start - 1] if start else store.manifest.eos_id
            assert batch.inputs[row, column] == before
            column += length
        assert column == 32


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
)
def test_the_micro_batches_of_all_processes_are_the_rows_of_each_step(
    store: TokenStore, processes: int, size: int, first_step: int
) -> None:
    values = TrainParams.model_validate(params(sequence_length=32, max_steps=4))
    order = open_order(store, values)
    shares = [ProcessShare(process, processes, size) for process in range(processes)]
    every = [list(micro_batches(store, order, values, share, range(first_step, values.max_steps))) for share in shares]
    for step in range(first_step, 4):
        of_step = [[batch for batch in batches if batch.step == step] for batches in every]
        rows = order.rows_of_step(step)
        together = np.concatenate([batch.rows.targets for batches in of_step for batch in batches])
        assert (together == read_rows(store, order.index, rows, 32).targets).all()
        for process, batches in enumerate(of_step):
            assert [batch.is_last for batch in batches] == [False] * (len(batches) - 1) + [True]
            first = process * len(rows) // processes
            assert [batch.first_row for batch in batches] == [first + size * number for number in range(len(batches))]


def test_the_seed_of_dropout_is_a_stated_function(store: TokenStore) -> None:
    """numpy's SeedSequence, whose values numpy keeps (NEP 19); Python's `hash` of a tuple may change."""
    rows = read_rows(store, pack_rows(store, 32), np.array([0]), 32)
    assert dropout_seed(7, MicroBatch(rows, 2, 4, True)) == 13787687309989359358
    seeds = {dropout_seed(s, MicroBatch(rows, t, r, True)) for s in (0, 1) for t in (0, 1) for r in (0, 8)}
    assert len(seeds) == 8


@given(st.integers(2, 30), st.lists(st.tuples(st.integers(1, 70), st.integers(0, 9)), max_size=60))
def test_documents_are_packed_in_their_order_and_cut_where_a_row_ends(
    sequence_length: int, documents: list[tuple[int, int]]
) -> None:
    """Other documents, of 0 to 9 tokens, lie between them in the store."""
    ends = np.cumsum([length + gap for length, gap in documents], dtype=np.int64)
    lengths = np.array([length for length, _ in documents], np.int64)
    starts = ends - [length + gap for length, gap in documents] if documents else ends
    stream = [token for start, length in zip(starts, lengths, strict=True) for token in range(start, start + length)]

    index = pack_documents(starts, lengths, sequence_length)

    assert index.rows == len(stream) // sequence_length
    for row in range(index.rows):
        tokens = [token for start, length in index.spans(row) for token in range(start, start + length)]
        assert tokens == stream[row * sequence_length : (row + 1) * sequence_length]
