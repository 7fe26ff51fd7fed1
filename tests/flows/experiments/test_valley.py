import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.experiments.statistics import Valley, fit_valley

SIZES = [(compute, size) for compute in (0.3, 1.0, 4.0) for size in (0.15, 0.4, 0.8, 1.6)]
"""Compute and parameters, as in experiments/dial.yaml."""

LAW = (0.6, -0.15, 0.12, 0.04, -0.03)


def runs(noise: float = 0.0, seed: int = 0, law: tuple[float, ...] = LAW) -> list[tuple[float, float, float]]:
    generator = np.random.default_rng(seed)
    return [(x, z, value(x, z, law) * np.exp(noise * generator.normal())) for x, z in SIZES]


def value(x: float, z: float, law: tuple[float, ...] = LAW) -> float:
    u, v = np.log(x), np.log(z)
    return float(np.exp(np.array(law) @ np.array([1, u, v, v * v, u * v])))


@settings(max_examples=30, deadline=None)
@given(curvature=st.floats(0.01, 0.3), exponent=st.floats(0.1, 1.0), compute=st.floats(0.1, 100))
def test_a_valley_without_noise_is_found_with_its_bottom(curvature: float, exponent: float, compute: float) -> None:
    law = (0.6, -0.15, 0.12, curvature, -2 * curvature * exponent)
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
        (runs()[:6], "7 runs"),
        ([(x, z, y) for x, z, y in runs() if x < 3] * 2, "three different x"),
        ([*runs(), (1.0, 1.0, 0.0)], "positive values"),
        (runs(law=(0.6, -0.15, 0.12, -0.04, 0.0)), "no valley"),
    ],
)
def test_runs_without_a_valley_are_refused(given_runs: list[tuple[float, float, float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_valley(given_runs)
