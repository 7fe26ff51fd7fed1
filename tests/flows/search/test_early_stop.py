"""The median rule, by hand and for any curves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.experiments.rows import CurvePoints
from flows.search.trials import EarlyStop

CURVES: list[CurvePoints] = [[(0.25, 5.0), (0.5, 4.0), (1.0, final)] for final in (1.0, 2.0, 3.0)]


def rule(quantile: float = 0.5, *, after: float = 0.5, lower: bool = True) -> EarlyStop:
    return EarlyStop(CURVES, after, quantile, lower=lower)


def test_a_run_is_stopped_at_the_first_point_where_its_best_value_is_worse_than_the_median() -> None:
    # At 0.75 the three are at 2.5, 3 and 3.5, half way between their points.
    stopped = rule().stopped([(0.25, 9.0), (0.5, 4.0), (0.75, 3.2), (0.9, 0.1)])

    assert stopped is not None
    assert stopped == (2, "stopped after 75% of its steps: 3.2 is worse than the median of 3 runs, 3")


@pytest.mark.parametrize(
    "points",
    [
        [(0.25, 9.0)],  # too early
        [(0.5, 4.0)],  # as good
        [(0.5, 2.9), (0.75, 3.4)],  # its best value counts
        [(0.5, 4.0), (1.0, 99.0)],  # at its end there is nothing to save
        [],
    ],
)
def test_a_run_goes_on_before_the_share_while_it_is_as_good_and_at_its_end(points: CurvePoints) -> None:
    assert rule().stopped(points) is None


def test_the_best_quarter_is_a_stricter_bound_and_higher_may_be_better() -> None:
    points = [(0.75, 2.9)]

    assert rule().stopped(points) is None
    assert rule(0.25).stopped(points) == (
        0,
        "stopped after 75% of its steps: 2.9 is worse than the best quarter of 3 runs, 2.75",
    )
    assert rule(lower=False).stopped(points) == (
        0,
        "stopped after 75% of its steps: 2.9 is worse than the median of 3 runs, 3",
    )
    assert rule(0.25, lower=False).stopped([(0.75, 3.2)]) is not None
    assert rule(lower=False).stopped([(0.75, 3.2)]) is None


def test_a_value_that_is_no_number_is_worse_than_any_other() -> None:
    stopped = rule().stopped([(0.5, 1.0), (0.75, math.nan)])

    assert stopped is not None
    assert stopped[0] == 1


def test_a_run_is_compared_only_with_curves_that_reach_its_point() -> None:
    short = EarlyStop([[(0.6, 1.0), (0.7, 1.0)]], 0.1, 0.5, lower=True)

    assert short.stopped([(0.5, 9.0), (0.8, 9.0)]) is None
    assert short.stopped([(0.65, 9.0)]) is not None


values = st.floats(0, 10) | st.just(math.nan)


@given(st.lists(values, max_size=12), st.lists(st.lists(values, min_size=1, max_size=12), max_size=5), st.booleans())
def test_reading_a_curve_early_or_late_gives_the_same_answer(
    run: list[float], earlier: list[list[float]], lower: bool
) -> None:
    curves = [[((i + 1) / len(curve), value) for i, value in enumerate(curve)] for curve in earlier]
    points = [((i + 1) / 12, value) for i, value in enumerate(run)]
    checked = EarlyStop(curves, 0.3, 0.5, lower=lower)

    answers = [checked.stopped(points[:count]) for count in range(len(points) + 1)]

    first = next((answer for answer in answers if answer), None)
    assert first == answers[-1]
    assert answers == [None if first is None or count <= first[0] else first for count in range(len(points) + 1)]
