"""Intervals, tests and fits agree with examples printed in books, and with their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.experiments.statistics import SIGNIFICANT, Estimate, estimate, fit_power_law, holm, paired_difference

MAIZE = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
"""Darwin's crossed minus self-fertilised plants, in eighths of an inch (Fisher, The Design of Experiments, § 17)."""

SLEEP_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SLEEP_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
"""Hours of sleep that two drugs added (Student 1908, The Probable Error of a Mean), R's example of the test."""


def test_the_mean_and_its_interval_are_those_of_fishers_maize() -> None:
    found = estimate(MAIZE)

    assert found.mean == pytest.approx(20.933, abs=5e-4)
    assert (found.low, found.high) == (pytest.approx(0.03, abs=5e-3), pytest.approx(41.84, abs=5e-3))


def test_the_paired_test_is_that_of_students_sleep_data() -> None:
    found = paired_difference(SLEEP_1, SLEEP_2)

    assert found.mean == pytest.approx(-1.58)
    assert found.p == pytest.approx(0.002833, abs=5e-7)
    assert (found.low, found.high) == (pytest.approx(-2.4598858, abs=5e-8), pytest.approx(-0.7001142, abs=5e-8))


def test_holm_gives_the_values_of_a_worked_example() -> None:
    # p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") in R; the example of the Holm-Bonferroni method in encyclopedias.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7))
def test_holm_rejects_what_its_procedure_rejects_one_after_the_other(p_values: list[float]) -> None:
    rejected = set()
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[index] * (len(p_values) - rank) >= SIGNIFICANT:
            break
        rejected.add(int(index))

    assert {index for index, p in enumerate(holm(p_values)) if p is not None and p < SIGNIFICANT} == rejected


@given(st.lists(st.floats(0, 1) | st.none(), max_size=7))
def test_holm_leaves_out_what_was_not_tested_and_never_lowers_a_p_value(p_values: list[float | None]) -> None:
    for before, after in zip(p_values, holm(p_values), strict=True):
        assert (before is None) == (after is None)
        assert before is None or (after is not None and before <= after <= 1)


def test_one_seed_has_a_mean_and_no_interval_and_equal_values_have_no_spread() -> None:
    value = 1350400 / 1e6
    assert float(np.mean([value] * 3)) != value

    assert estimate([3.0]) == Estimate(1, 3.0, None, None)
    assert paired_difference([1.0], [2.0]).p is None
    assert estimate([value] * 3) == Estimate(3, value, value, value)


def law(noise: float, seed: int = 0) -> list[tuple[float, float]]:
    generator = np.random.default_rng(seed)
    return [
        (x, 5 * x**-0.2 * np.exp(noise * generator.normal())) for x in (1.0, 3.0, 10.0, 40.0, 90.0) for _ in range(3)
    ]


def test_a_law_without_noise_is_found_with_its_curve() -> None:
    found = fit_power_law(law(0))

    assert (found.a, found.b, found.n) == (pytest.approx(5), pytest.approx(0.2), 15)
    assert found.curve(np.array([7.0])) == pytest.approx(5 * 7**-0.2)


def test_about_95_of_100_intervals_hold_the_true_exponent_and_curve() -> None:
    fits = [fit_power_law(law(0.05, seed)) for seed in range(200)]
    bands = [found.band(np.array([20.0])) for found in fits]

    assert 180 <= sum(low <= 0.2 <= high for low, high in (found.b_interval for found in fits)) <= 199
    assert 180 <= sum(low[0] <= 5 * 20**-0.2 <= high[0] for low, high in bands) <= 199


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([(1.0, 2.0), (2.0, 1.0)], "needs 3 distinct x values"),
        ([(1.0, 2.0), (2.0, 0.0), (3.0, 0.5)], "needs positive values"),
    ],
)
def test_too_little_for_a_law_is_refused(runs: list[tuple[float, float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_power_law(runs)
