"""The law's figures are those of the experiment, and it goes on where nothing was measured."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.train.dial import LAW, effective_tokens
from tests.small_project import ROOT

FIT = json.loads((ROOT / "experiments/dial/valley.json").read_text(encoding="utf-8"))

LOW, HIGH = (1e12 * tflop for tflop in LAW.measured_tflop)


def test_the_figures_are_the_stored_fit_of_the_experiment() -> None:
    assert LAW.coefficients == pytest.approx(FIT["coefficients"], rel=1e-6)
    assert FIT["runs"] == 14


def test_the_law_says_what_the_experiment_predicts() -> None:
    (tflop, millions), predicted = (FIT["predict"]["18.9 TFLOP, width 128"][key] for key in ("at", "value"))

    assert LAW.bits_per_byte(millions * 1e6, tflop * 1e12, 1e6) == pytest.approx(predicted, rel=1e-3)
    assert LAW.covers(LOW)
    assert LAW.covers(HIGH)
    assert not LAW.covers(1.1 * HIGH)
    assert not LAW.covers(0.9 * LOW)


@given(exponent=st.floats(10, 24), factor=st.floats(1.01, 100))
def test_more_compute_has_a_larger_best_size_and_a_lower_loss_within_what_was_measured_and_beyond(
    exponent: float, factor: float
) -> None:
    less, more = 10**exponent, 10**exponent * factor

    def lowest(flops: float) -> float:
        return LAW.bits_per_byte(LAW.best_parameters(flops), flops, 1e6)

    assert LAW.best_parameters(more) > LAW.best_parameters(less)
    assert lowest(more) < lowest(less)


@given(side=st.sampled_from([LOW, HIGH]), size=st.floats(0.1, 10))
def test_the_law_has_no_step_where_it_begins_to_be_extrapolated(side: float, size: float) -> None:
    within, beyond = (LAW.bits_per_byte(size * 1e6, side * share, 1e6) for share in (1 - 1e-9, 1 + 1e-9))

    assert within == pytest.approx(beyond, rel=1e-6)


@given(exponent=st.floats(13.5, 24))
def test_beyond_the_size_grows_as_the_square_root_of_compute(exponent: float) -> None:
    sizes = [LAW.best_parameters(factor * 10**exponent) for factor in (1, 4)]

    assert sizes[1] / sizes[0] == pytest.approx(2)


@given(flops=st.floats(1e11, 1e18), epochs=st.floats(1.01, 100))
def test_at_its_best_size_a_run_on_repeated_tokens_ends_where_less_compute_ends(flops: float, epochs: float) -> None:
    corpus = 1e6
    worth = flops * effective_tokens(epochs * corpus, corpus) / (epochs * corpus)
    repeated = LAW.bits_per_byte(LAW.best_parameters(flops), flops, epochs * corpus, corpus)

    assert worth < flops
    assert math.isclose(repeated, LAW.bits_per_byte(LAW.best_parameters(worth), worth, corpus))


@given(corpus=st.floats(1e3, 1e9), epochs=st.floats(0.01, 1e4), more=st.floats(0, 10))
def test_repeated_tokens_are_worth_less_than_new_ones_and_never_nothing(
    corpus: float, epochs: float, more: float
) -> None:
    worth, later = (effective_tokens(corpus * times, corpus) for times in (epochs, epochs + more))

    assert worth <= corpus * epochs * (1 + 1e-9)
    assert worth <= later * (1 + 1e-12)
    assert later <= corpus * 16.4 * (1 + 1e-9)


def test_four_epochs_are_worth_nearly_as_much_as_new_tokens() -> None:
    # Muennighoff et al. 2023, abstract: up to 4 epochs the difference is negligible.
    assert effective_tokens(4e6, 1e6) == pytest.approx(4e6, rel=0.08)
    assert effective_tokens(1e6, 1e6) == effective_tokens(1e6, None) == 1e6
