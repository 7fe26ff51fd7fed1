"""pass@k is the share of choices that hold one that passes, and its interval covers what it says."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.evaluate.score.scoring import estimate_pass_at_k, first_pass_at_k, mean_pass_at_k, set_name
from stages.formats.evaluation import intervals
from stages.formats.evaluation.intervals import ratio_interval, resampled_sums
from stages.formats.evaluation.scores import PassAtK, ScoreReport, SetScore


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int, int]:
    samples = draw(st.integers(1, 9))
    return samples, draw(st.integers(0, samples)), draw(st.integers(1, samples))


@given(counts())
def test_it_is_the_share_of_all_choices_of_k_samples_that_hold_one_that_passes(case: tuple[int, int, int]) -> None:
    samples, passed, k = case
    choices = list(combinations([True] * passed + [False] * (samples - passed), k))

    assert estimate_pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)


@given(st.integers(1, 10_000), st.data())
def test_it_grows_with_k_and_with_what_passes_and_stays_a_probability(samples: int, data: st.DataObject) -> None:
    passed, k = data.draw(st.integers(0, samples - 1)), data.draw(st.integers(1, samples))
    value = estimate_pass_at_k(samples, passed, k)

    assert 0 <= value <= estimate_pass_at_k(samples, passed + 1, k) <= 1
    assert estimate_pass_at_k(samples, passed, 1) - 1e-9 <= value
    assert estimate_pass_at_k(samples, passed, 1) == pytest.approx(passed / samples)


def test_the_mean_is_over_problems_and_its_interval_holds_it() -> None:
    counts = [(10, 0), (10, 10), (10, 5), (10, 1)] * 4

    score = mean_pass_at_k(counts, 1)

    assert score.value == pytest.approx(0.4)
    assert score.interval_95 is not None
    assert 0 <= score.interval_95[0] < 0.4 < score.interval_95[1] <= 1
    assert mean_pass_at_k(counts, 1) == score


def test_fewer_than_ten_problems_have_no_interval() -> None:
    assert mean_pass_at_k([(4, 1)] * 9, 1) == PassAtK(value=0.25, interval_95=None)


@pytest.mark.parametrize("k", [1, 3])
def test_the_interval_of_all_or_none_is_the_exact_one(k: int) -> None:
    """R: binom.test(0, 12) and binom.test(12, 12)."""
    for passed, ends in ((0, (0.0, 0.264648)), (4, (0.735352, 1.0))):
        score = mean_pass_at_k([(4, passed)] * 12, k)

        assert score.interval_95 == pytest.approx(ends, abs=1e-6)


def test_the_set_of_a_problem_is_named_by_its_task_id() -> None:
    assert set_name("HumanEval/0") == "HumanEval"
    assert set_name("two_sum") == "problems"


def test_runs_are_compared_by_the_smallest_k_and_by_sets_only_where_there_are_several() -> None:
    scored = {"1": PassAtK(value=0.25, interval_95=None), "10": PassAtK(value=0.5, interval_95=None)}

    def compared(**pass_at_k: dict[str, PassAtK]) -> object:
        sets = {
            name: SetScore(problems=1, problems_sha256="", samples=10, results={}, left_out={}, pass_at_k=values)
            for name, values in pass_at_k.items()
        }
        return first_pass_at_k(ScoreReport.model_construct(sets=sets))

    assert compared(mine=scored) == {"pass@1": 0.25}
    assert compared(mine=scored, others=scored) == {"pass@1": {"mine": 0.25, "others": 0.25}}
    assert compared(mine={}) == {}, "nothing was run"


def test_the_columns_of_a_resample_are_sums_over_the_same_draw() -> None:
    columns = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])

    sums = resampled_sums(columns)

    assert sums.shape == (intervals.RESAMPLES, 2)
    np.testing.assert_array_equal(sums[:, 1], 10 * sums[:, 0])
    assert len(np.unique(sums[:, 0])) > 5


def test_a_draw_in_chunks_is_the_draw_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = np.arange(20.0).reshape(10, 2)
    at_once = resampled_sums(columns)
    monkeypatch.setattr(intervals, "CHUNK_ENTRIES", 70)

    np.testing.assert_array_equal(resampled_sums(columns), at_once)


def test_the_interval_has_the_width_that_theory_says() -> None:
    values = np.random.default_rng(0).normal(5.0, 2.0, size=400)

    ends = ratio_interval(values, np.ones(400))

    half = 1.96 * values.std() / 20
    assert ends == pytest.approx((values.mean() - half, values.mean() + half), abs=0.03)


@pytest.mark.parametrize(("documents", "least"), [(10, 0.89), (37, 0.91)])
def test_the_interval_of_few_documents_of_very_different_sizes_covers_the_ratio(documents: int, least: float) -> None:
    """By bootstrap 85 and 90 % of them did."""
    generator = np.random.default_rng(0)
    sizes = generator.lognormal(8, 1.3, 100_000)
    nats = 1.5 * sizes * np.exp(generator.normal(0, 0.25, 100_000)) * (sizes / sizes.mean()) ** -0.05
    covered = 0
    for _ in range(1000):
        drawn = generator.integers(0, 100_000, documents)
        low, high = ratio_interval(nats[drawn], sizes[drawn]) or (0, 0)
        covered += low <= nats.sum() / sizes.sum() <= high

    assert covered / 1000 >= least


def test_the_difference_of_equal_models_is_zero_and_fewer_than_ten_documents_have_no_interval() -> None:
    assert ratio_interval(np.zeros(12), np.ones(12)) == (0.0, 0.0)
    assert ratio_interval(np.arange(9.0), np.ones(9)) is None
