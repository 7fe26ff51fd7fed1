import numpy as np
import pytest

from stages.evaluate import bootstrap
from stages.evaluate.bootstrap import interval_95, resampled_sums


def test_the_columns_of_a_resample_are_sums_over_the_same_draw() -> None:
    columns = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])

    sums = resampled_sums(columns, 500, seed=0)

    assert sums.shape == (500, 2)
    np.testing.assert_array_equal(sums[:, 1], 10 * sums[:, 0])
    assert len(np.unique(sums[:, 0])) > 5


def test_a_draw_in_chunks_is_the_draw_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = np.arange(20.0).reshape(10, 2)
    at_once = resampled_sums(columns, 100, seed=3)
    monkeypatch.setattr(bootstrap, "CHUNK_ENTRIES", 70)

    np.testing.assert_array_equal(resampled_sums(columns, 100, seed=3), at_once)


def test_the_interval_has_the_width_that_theory_says() -> None:
    values = np.random.default_rng(0).normal(5.0, 2.0, size=(400, 1))

    low, high = interval_95(resampled_sums(values, 4000, seed=1)[:, 0] / 400)

    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.03)
    assert high == pytest.approx(values.mean() + half, abs=0.03)


def test_one_document_alone_has_no_spread() -> None:
    assert interval_95(resampled_sums(np.array([[3.0]]), 100, seed=0)[:, 0]) == (3.0, 3.0)
