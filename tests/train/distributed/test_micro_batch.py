"""How many sequences a forward pass takes."""

from hypothesis import given
from hypothesis import strategies as st

from stages.train.distributed.hardware import balanced, sequences_that_fit


@given(share=st.integers(1, 500), fitting=st.integers(1, 500))
def test_micro_batches_are_as_few_and_as_equal_as_can_be(share: int, fitting: int) -> None:
    size = balanced(share, fitting)
    assert size <= fitting
    assert -(-share // size) == -(-share // fitting)


def test_the_optimizers_state_is_left_room_for() -> None:
    assert sequences_that_fit(free=10_000, state=5_000, per_sequence=400) == 10
    assert sequences_that_fit(free=10_000, state=9_990, per_sequence=400) == 1
