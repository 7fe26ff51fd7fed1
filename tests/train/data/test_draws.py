"""Draws from several sources: whole numbers whose shares are as asked at every point, whatever came before."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stages.train.data.draws import Draws, Ratios, whole_numbers

rates = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=9).filter(any)


def test_the_worked_example() -> None:
    drawn = [Ratios((2, 1, 1)).source(draw)[0] for draw in range(8)]
    assert "".join("abc"[source] for source in drawn) == "abacabac"


@given(rates=rates, draws=st.integers(0, 300))
def test_each_source_is_within_half_a_row_for_each_halving_of_what_is_asked(rates: list[float], draws: int) -> None:
    counts = Ratios(whole_numbers(rates)).counts(draws)
    asked = np.array(rates) / sum(rates) * draws
    halvings = (len(rates) - 1).bit_length()
    assert sum(counts) == draws
    assert np.abs(np.array(counts) - asked).max() <= halvings / 2 + 1e-6
    assert all(count == 0 for count, rate in zip(counts, rates, strict=True) if rate == 0)


@given(first=rates, second=rates, third=rates, lengths=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_each_draw_takes_the_next_one_of_its_source_through_all_phases(
    first: list[float], second: list[float], third: list[float], lengths: tuple[int, int]
) -> None:
    sources = min(map(len, (first, second, third)))
    phases = tuple(Ratios(whole_numbers([*each[: sources - 1], 1.0])) for each in (first, second, third))
    draws = Draws((0, lengths[0], sum(lengths)), phases)
    taken = [0] * sources
    for draw in range(120):
        assert draws.counts(draw) == taken
        source, number = draws.source(draw)
        assert number == taken[source]
        taken[source] += 1
    for start, phase in zip(draws.starts, phases, strict=True):
        assert draws.source(start)[0] == phase.source(0)[0]


@given(rates=rates, draw=st.integers(10**12, 10**15))
def test_a_draw_far_into_a_long_run_is_exact_too(rates: list[float], draw: int) -> None:
    ratios = Ratios(whole_numbers(rates))
    before, after = ratios.counts(draw), ratios.counts(draw + 1)
    source, number = ratios.source(draw)
    assert number == before[source]
    assert after == [count + (place == source) for place, count in enumerate(before)]
