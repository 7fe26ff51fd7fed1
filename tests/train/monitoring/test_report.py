"""What a run says of itself while it trains."""

import pytest

from stages.train.monitoring.report import seconds_left
from stages.train.params import TrainParams
from tests.train.small_run import params


def test_the_time_that_remains_is_counted_in_rows_for_larger_batches_take_longer() -> None:
    values = TrainParams.model_validate(params(global_batch_size=8, batch_doublings=[200, 600], max_steps=1000))
    # 200 steps of 8 rows took 100 s: 1,600 rows. 400 steps of 16 and 400 of 32 follow: 19,200 rows.
    assert seconds_left(values, range(1000), 200, 100.0) == pytest.approx(1200.0)
    # Started again at step 600, 100 steps of 32 rows in 200 s; 300 remain.
    assert seconds_left(values, range(600, 1000), 700, 200.0) == pytest.approx(600.0)
    assert seconds_left(values, range(600, 1000), 1000, 800.0) == 0.0
