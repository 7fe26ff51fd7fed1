"""Each process takes its part of each global batch, in order, and each part says where it belongs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.formats.tokens import TokenStore
from stages.train.data.batches import MicroBatch, ProcessShare, dropout_seed, micro_batches, read_rows, rows_of_step
from stages.train.data.order import open_order
from stages.train.data.packing import build_packing
from stages.train.params import TrainParams
from tests.train.small_run import params, write_project


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    folder = write_project(tmp_path_factory.mktemp("store"))
    return TokenStore(folder / "data/tokens/train")


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
