"""Intervals, tests and fits agree with scipy, with examples printed in books, and with their definitions."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from flows.experiments.statistics import (
    SIGNIFICANT,
    Estimate,
    PowerLaw,
    Valley,
    estimate,
    fit_power_law,
    fit_valley,
    holm,
    is_best,
    paired_difference,
    t_interval,
)

MAIZE = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
"""Darwin's crossed minus self-fertilised plants, in eighths of an inch (Fisher, The Design of Experiments, § 17)."""

SLEEP_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SLEEP_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
"""Hours of sleep that two drugs added (Student 1908, The Probable Error of a Mean), R's example of the test."""

NUMBERS = st.floats(-1e3, 1e3).map(lambda value: round(value, 3))


def test_the_mean_and_its_interval_are_those_of_fishers_maize() -> None:
    found = estimate(MAIZE)

    assert found.mean == pytest.approx(20.933, abs=5e-4)
    assert found.sd == pytest.approx(37.744, abs=5e-4)
    assert (found.low, found.high) == (pytest.approx(0.03, abs=5e-3), pytest.approx(41.84, abs=5e-3))


def test_the_paired_test_is_that_of_students_sleep_data() -> None:
    found = paired_difference(SLEEP_1, SLEEP_2)

    assert found.mean == pytest.approx(-1.58)
    assert found.p == pytest.approx(0.002833, abs=5e-7)
    assert (found.low, found.high) == (pytest.approx(-2.4598858, abs=5e-8), pytest.approx(-0.7001142, abs=5e-8))


def test_holm_gives_the_values_of_a_worked_example() -> None:
    # p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") in R; the example of the Holm-Bonferroni method in encyclopedias.
    assert [p for p, _ in holm([0.01, 0.04, 0.03, 0.005])] == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(st.lists(NUMBERS, min_size=2, max_size=8))
def test_the_interval_is_scipys(values: list[float]) -> None:
    assume(max(values) - min(values) > 0.01)  # scipy warns of lost digits
    found, interval = estimate(values), stats.ttest_1samp(values, 0).confidence_interval(0.95)

    assert [found.low, found.high] == pytest.approx([interval.low, interval.high], abs=1e-6, nan_ok=True)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=8))
def test_the_paired_test_is_scipys(pairs: list[tuple[float, float]]) -> None:
    own, other = zip(*pairs, strict=True)
    found = paired_difference(own, other)

    if found.sd and found.sd > 1e-9:  # where no pair differs from the others scipy divides zero by zero
        assert found.p == pytest.approx(stats.ttest_rel(own, other).pvalue, rel=1e-6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7))
def test_holm_rejects_what_its_procedure_rejects_one_after_the_other(p_values: list[float]) -> None:
    rejected = set()
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[index] * (len(p_values) - rank) >= SIGNIFICANT:
            break
        rejected.add(int(index))

    assert {index for index, (p, _) in enumerate(holm(p_values)) if p is not None and p < SIGNIFICANT} == rejected


@given(st.lists(st.floats(0, 1) | st.none(), max_size=7))
def test_holm_leaves_out_what_was_not_tested_and_never_lowers_a_p_value(p_values: list[float | None]) -> None:
    for before, (after, level) in zip(p_values, holm(p_values), strict=True):
        assert (before is None) == (after is None) == (level is None)
        assert before is None or (after is not None and before <= after <= 1)


PAIRS = st.lists(st.tuples(*[st.floats(-5, 5).map(lambda value: round(value, 3))] * 2), min_size=3, max_size=6)


@given(st.lists(PAIRS, min_size=1, max_size=6))
def test_an_interval_at_the_level_of_its_test_is_scipys_and_excludes_0_where_holm_rejects(
    comparisons: list[list[tuple[float, float]]],
) -> None:
    found = [paired_difference(*zip(*pairs, strict=True)) for pairs in comparisons]
    spread = [one for one in found if one.sd and one.sd > 1e-9]
    kept = [pairs for pairs, one in zip(comparisons, found, strict=True) if one in spread]

    for pairs, one, (p, level) in zip(kept, spread, holm([one.p for one in spread]), strict=True):
        assert one.sd is not None
        assert level is not None
        assert p is not None
        low, high = t_interval(one.n, one.mean, one.sd, level)
        expected = stats.ttest_rel(*zip(*pairs, strict=True)).confidence_interval(1 - level)
        assert (low, high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-9)
        if abs(p - SIGNIFICANT) > 1e-9:
            assert (not low <= 0 <= high) == (p < SIGNIFICANT)


@pytest.mark.parametrize(
    ("p_values", "tested"),
    [
        ([0.001], [1]),
        ([0.001, 0.002, 0.003], [3, 2, 1]),
        ([0.04, 0.001, 0.03], [2, 3, 2]),  # 0.03 times 2 is not significant: Holm's procedure ends there
        ([0.9, None, 0.5], [2, None, 2]),
    ],
)
def test_holm_tests_the_smallest_at_a_level_for_all_and_each_further_one_at_a_level_for_those_left(
    p_values: list[float | None], tested: list[int | None]
) -> None:
    assert [level for _, level in holm(p_values)] == [
        None if count is None else SIGNIFICANT / count for count in tested
    ]


def test_one_seed_has_a_mean_and_no_interval_and_no_test() -> None:
    assert (estimate([3.0]).mean, estimate([3.0]).low, estimate([3.0]).sd) == (3.0, None, None)
    assert paired_difference([1.0], [2.0]).p is None


def test_the_best_is_named_only_where_it_is_significantly_better_than_each_other() -> None:
    good, close, bad = [1.0, 1.1, 1.2], [1.01, 1.05, 1.22], [2.01, 2.08, 2.2]

    assert is_best(good, [bad], lower=True)
    assert not is_best(good, [bad], lower=False)
    assert not is_best(good, [bad, close], lower=True)
    assert not is_best(good, [bad[:2]], lower=True)  # a run is missing
    assert not is_best([1.0], [[2.0]], lower=True)
    assert not is_best(good, [], lower=True)


def test_many_rivals_make_the_best_harder_to_name() -> None:
    own, other = [1.00, 1.01, 1.03], [1.10, 1.16, 1.21]
    p = paired_difference(own, other).p

    assert p is not None
    assert SIGNIFICANT / 2 < p < SIGNIFICANT
    assert is_best(own, [other], lower=True)
    assert not is_best(own, [other, other], lower=True)


def law(a: float, b: float, c: float, noise: float, seed: int = 0) -> list[tuple[float, list[float]]]:
    generator = np.random.default_rng(seed)
    return [(x, list((a * x**-b + c) * np.exp(noise * generator.normal(size=3)))) for x in (1.0, 3.0, 10.0, 40.0, 90.0)]


def interval(fitted: PowerLaw) -> tuple[float, float]:
    low, high = fitted.b_interval
    assert low is not None
    assert high is not None
    return low, high


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("alone", [slice(None), slice(1)])
def test_where_a_group_has_one_run_a_law_is_fitted_without_an_interval(offset: bool, alone: slice) -> None:
    groups = law(5, 0.2, 0.1, 0.05)
    for _, ys in groups[alone]:
        del ys[1:]

    found = fit_power_law(groups, offset=offset, resamples=10)

    assert found.b_interval == (None, None)
    assert found.band(np.array([2.0])) is None
    assert found.b == fit_power_law(groups, offset=offset, resamples=10).b > 0


def test_the_fit_without_an_offset_is_scipys_regression_of_the_logarithms() -> None:
    groups = law(5, 0.2, 0, 0.05)
    found = fit_power_law(groups, offset=False)
    x, y = zip(*((x, y) for x, ys in groups for y in ys), strict=True)
    line = stats.linregress(np.log(x), np.log(y))

    assert (found.b, np.log(found.a)) == (pytest.approx(-line.slope), pytest.approx(line.intercept))
    assert (found.n, found.c) == (15, 0.0)


@settings(max_examples=15, deadline=None)
@given(a=st.floats(1, 10), b=st.floats(0.1, 1), c=st.floats(0.3, 3))
def test_a_law_without_noise_is_found(a: float, b: float, c: float) -> None:
    with_offset = fit_power_law(law(a, b, c, 0), offset=True, resamples=2)
    without = fit_power_law(law(a, b, 0, 0), offset=False, resamples=2)

    assert (without.a, without.b) == (pytest.approx(a), pytest.approx(b))
    assert (with_offset.a, with_offset.b, with_offset.c) == pytest.approx((a, b, c), rel=1e-3)
    x = np.array([2.0, 20.0])
    band = with_offset.band(x)
    assert band is not None
    for curve in (with_offset.curve(x), *band):
        assert curve == pytest.approx(a * x**-b + c, rel=1e-3)


def test_about_95_of_100_intervals_of_the_exponent_hold_the_true_one() -> None:
    bounds = [interval(fit_power_law(law(5, 0.2, 0, 0.05, seed), offset=False, resamples=200)) for seed in range(200)]

    assert 180 <= sum(low <= 0.2 <= high for low, high in bounds) <= 198


def test_the_interval_of_a_law_with_an_offset_is_wider_than_that_of_one_without() -> None:
    groups = law(5, 0.5, 1, 0.02)
    found, without = fit_power_law(groups, offset=True, resamples=50), fit_power_law(groups, offset=False)

    (low, high), (low_without, high_without) = interval(found), interval(without)
    assert low < 0.5 < high
    assert high - low > 3 * (high_without - low_without)


def test_the_same_runs_give_the_same_interval() -> None:
    assert (
        fit_power_law(law(5, 0.2, 0, 0.05), offset=False).b_interval
        == fit_power_law(law(5, 0.2, 0, 0.05), offset=False).b_interval
    )


@pytest.mark.parametrize(
    ("groups", "offset", "message"),
    [
        ([(1.0, [2.0]), (2.0, [1.0])], False, "needs 3 different x"),
        ([(1.0, [2.0]), (2.0, [1.0]), (3.0, [0.5])], True, "with an offset needs 4 different x"),
        ([(1.0, [2.0]), (2.0, [0.0]), (3.0, [0.5])], False, "needs positive values"),
    ],
)
def test_too_little_for_a_law_is_refused(groups: list[tuple[float, list[float]]], offset: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_power_law(groups, offset=offset)


def test_equal_values_have_no_spread_at_all() -> None:
    value = 1350400 / 1e6
    assert float(np.mean([value] * 3)) != value

    assert estimate([value] * 3) == Estimate(3, value, 0.0, value, value)


SIZES = [(compute, size) for compute in (0.3, 1.0, 4.0) for size in (0.15, 0.4, 0.8, 1.6)]
"""Compute and parameters, as in experiments/dial.yaml."""

LAW = (0.6, -0.15, 0.12, 0.04, -0.03, 0.01)


def runs(noise: float = 0.0, seed: int = 0, law: tuple[float, ...] = LAW) -> list[tuple[float, float, float]]:
    generator = np.random.default_rng(seed)
    return [(x, z, value(x, z, law) * np.exp(noise * generator.normal())) for x, z in SIZES]


def value(x: float, z: float, law: tuple[float, ...] = LAW) -> float:
    u, v = np.log(x), np.log(z)
    return float(np.exp(np.array(law) @ np.array([1, u, v, v * v, u * v, u * u])))


@settings(max_examples=30, deadline=None)
@given(curvature=st.floats(0.01, 0.3), exponent=st.floats(0.1, 1.0), compute=st.floats(0.1, 100))
def test_a_valley_without_noise_is_found_with_its_bottom(curvature: float, exponent: float, compute: float) -> None:
    law = (0.6, -0.15, 0.12, curvature, -2 * curvature * exponent, 0.02)
    found = fit_valley(runs(law=law))

    best = found.best(compute)
    assert found.b == pytest.approx(exponent, rel=1e-6)
    assert best == pytest.approx(np.exp(-0.12 / (2 * curvature)) * compute**exponent, rel=1e-6)
    assert found.at(compute, best) <= min(found.at(compute, best * 0.9), found.at(compute, best * 1.1))
    assert found.at(5, 9) == pytest.approx(value(5, 9, law), rel=1e-6)


def test_about_95_of_100_intervals_hold_a_run_that_is_yet_to_come_and_the_true_exponent() -> None:
    fits = [fit_valley(runs(0.01, seed)) for seed in range(300)]
    to_come = [value(10, 0.8) * np.exp(0.01 * np.random.default_rng(seed + 1000).normal()) for seed in range(300)]

    def holds(bounds: tuple[float, float], number: float) -> bool:
        return bounds[0] <= number <= bounds[1]

    assert 276 <= sum(holds(law.interval(10, 0.8), run) for law, run in zip(fits, to_come, strict=True)) <= 296
    assert sum(holds(law.b_interval, 0.375) for law in fits) >= 270


def test_the_interval_widens_away_from_the_runs_and_the_order_of_runs_does_not_matter() -> None:
    def width(law: Valley, x: float, z: float) -> float:
        low, high = law.interval(x, z)
        return (high - low) / law.at(x, z)

    one, again = fit_valley(runs(0.01)), fit_valley(runs(0.01)[::-1])

    assert one.interval(1, 1) == again.interval(1, 1)
    assert width(one, 100, 10) > 3 * width(one, 1.0, 0.4)


@pytest.mark.parametrize(
    ("given_runs", "message"),
    [
        (runs()[:7], "8 runs"),
        ([(x, z, y) for x, z, y in runs() if x < 3] * 2, "three different x"),
        ([*runs(), (1.0, 1.0, 0.0)], "positive values"),
        (runs(law=(0.6, -0.15, 0.12, -0.04, 0.0, 0.0)), "no valley"),
        (runs(law=(0.6, -0.15, 0.12, 1e-5, 0.0, 0.0)), "no valley"),
        ([(x, float(round(x**0.5)), x**-0.05) for x in np.geomspace(1e12, 4e13, 9)], "here z follows from x"),
    ],
)
def test_runs_without_a_valley_are_refused(given_runs: list[tuple[float, float, float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_valley(given_runs)
