"""The dial: recipes for any compute, on models counted as the forecast counts them, and the law that was measured."""

import json
import re
from copy import deepcopy
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.experiments.cells import cells_of, read_experiment, resolved
from flows.project.edit import apply
from stages.formats.tokens import Manifest
from stages.runtime.section import check_section, flatten, read_params_file
from stages.train.compute.model.flops import flops_per_token
from stages.train.dial import (
    LAW,
    MIN_STEPS,
    Counted,
    Recipe,
    best_recipe,
    effective_tokens,
    model_of,
    recipe_of,
    widths,
)
from stages.train.params import TrainParams
from stages.train.planned import model_without_weights
from tests.small_project import ROOT

LENGTH = 256
VOCABULARY = Manifest("uint16", 32768, 0, "", "", ())

CORPUS_TOKENS = 4_515_089
"""Of the default corpus."""

FLOPS = st.floats(11, 18).map(lambda exponent: 10.0**exponent)


@cache
def defaults() -> TrainParams:
    return check_section("train", read_params_file()["train"], TrainParams)


@cache
def counted(width: int) -> Counted:
    params = defaults().model_copy(update={"model": model_of(width, LENGTH)})
    model = model_without_weights(params, VOCABULARY)
    return Counted(width, flops_per_token(model, LENGTH, params.head_rows))


def chosen(flops: float, corpus_tokens: float | None = None) -> Recipe:
    found = best_recipe(flops, LENGTH, counted, corpus_tokens)
    assert found is not None
    return found


@settings(max_examples=25)
@given(flops=FLOPS)
def test_the_recipe_takes_the_compute_that_was_asked_for_to_within_half_a_step(flops: float) -> None:
    recipe = chosen(flops)

    assert abs(recipe.flops - flops) <= flops / recipe.steps / 2 * 1.1
    assert recipe.flops == pytest.approx(flops, rel=0.03)
    assert recipe.steps >= MIN_STEPS


@settings(max_examples=25)
@given(flops=FLOPS, factor=st.floats(1, 100))
def test_more_compute_means_no_smaller_a_model_no_smaller_a_batch_and_fewer_expected_bits(
    flops: float, factor: float
) -> None:
    less, more = chosen(flops), chosen(flops * factor)

    def bits(recipe: Recipe) -> float:
        return LAW.bits_per_byte(recipe.model.flops_per_token, recipe.flops)

    assert more.model.width >= less.model.width
    assert bits(more) <= bits(less) * 1.002  # steps are whole numbers


@settings(max_examples=25)
@given(flops=FLOPS)
def test_no_other_width_is_expected_to_end_lower(flops: float) -> None:
    recipe = chosen(flops)

    def bits(width: int) -> float:
        return LAW.bits_per_byte(counted(width).flops_per_token, flops)

    others = [width for width in widths() if width <= 2 * recipe.model.width]
    enough = [width for width in others if recipe_of(counted(width), flops, LENGTH).steps >= MIN_STEPS]
    assert bits(recipe.model.width) == min(map(bits, enough))


def test_the_dial_chooses_the_default_for_its_compute() -> None:
    """The default is the reference run of the dial's rules."""
    train = defaults()
    flops = counted(train.model["hidden_size"]).flops_per_token * train.tokens

    recipe = chosen(flops, CORPUS_TOKENS)

    written = {"train": train.model_dump(mode="json")}
    for key, value in recipe.values.items():
        apply(written, {f"train.{key}": value})
    assert written["train"] == train.model_dump(mode="json")


def test_the_experiment_of_the_presets_runs_what_the_dial_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    today, found = read_params_file(), {}
    for cell in cells_of("presets", read_experiment("presets")):
        if tflop := re.fullmatch(r"dial at (\d+) TFLOP", cell.levels["preset"]):
            found[int(tflop[1])] = flatten(cell.params(today)["train"])

    assert [*found] == [1, 5, 20]
    for tflop, values in found.items():
        recipe = chosen(tflop * 1e12, CORPUS_TOKENS)
        written = {"train": deepcopy(today["train"])}
        for key, value in recipe.values.items():
            apply(written, {f"train.{key}": value})
        assert flatten(written["train"]) == values, tflop


def test_the_recipe_longer_is_what_the_dial_chooses_for_20_tflop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    longer, written = read_params_file(), read_params_file()
    apply(longer, resolved({"recipe": "longer"}))

    apply(written, {f"train.{key}": value for key, value in chosen(20e12, CORPUS_TOKENS).values.items()})

    assert flatten(longer["train"]) == flatten(written["train"])


FIT = json.loads((ROOT / "experiments/dial/valley.json").read_text(encoding="utf-8"))

LOW, HIGH = (1e12 * tflop for tflop in LAW.measured_tflop)


def test_the_figures_are_the_stored_fit_of_the_experiment() -> None:
    assert LAW.coefficients == pytest.approx(FIT["coefficients"], rel=1e-6)
    assert FIT["runs"] == 11


def test_the_law_says_what_the_experiment_predicts() -> None:
    (tflop, per_token), predicted = (FIT["predict"]["8 TFLOP, width 64"][key] for key in ("at", "value"))

    assert LAW.bits_per_byte(per_token * 1e6, tflop * 1e12) == pytest.approx(predicted, rel=1e-3)
    assert LAW.covers(LOW)
    assert LAW.covers(HIGH)
    assert not LAW.covers(1.1 * HIGH)
    assert not LAW.covers(0.9 * LOW)


@given(side=st.sampled_from([LOW, HIGH]), size=st.floats(0.1, 10))
def test_the_law_has_no_step_where_it_begins_to_be_extrapolated(side: float, size: float) -> None:
    within, beyond = (LAW.bits_per_byte(size * 1e6, side * share) for share in (1 - 1e-9, 1 + 1e-9))

    assert within == pytest.approx(beyond, rel=1e-6)


@given(corpus=st.floats(1e3, 1e9), epochs=st.floats(0.01, 1e4), more=st.floats(0, 10))
def test_repeated_tokens_are_worth_less_than_new_ones_and_never_nothing(
    corpus: float, epochs: float, more: float
) -> None:
    worth, later = (effective_tokens(corpus * times, corpus) for times in (epochs, epochs + more))

    assert worth <= corpus * epochs * (1 + 1e-9)
    assert worth <= later * (1 + 1e-12)
    assert later <= corpus * 16.4 * (1 + 1e-9)
