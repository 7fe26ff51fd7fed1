"""The arithmetic of the dial: what holds for every compute, on models counted as the forecast counts them."""

import re
from copy import deepcopy
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.experiments.cells import cells_of, read_experiment
from flows.project.compose import put
from stages.formats.tokens import Manifest
from stages.runtime.section import check_section, flatten, read_params_file
from stages.train.dial import LAW, LEAST_STEPS, Counted, Recipe, best_recipe, model_of, recipe_of, widths
from stages.train.model.build import flops_per_token, model_without_weights
from stages.train.params import TrainParams
from tests.small_project import ROOT

LENGTH = 256
VOCABULARY = Manifest("uint32", 4096, 0, "", "", ())

CORPUS_TOKENS = 2_799_480
"""Of the default corpus."""

FLOPS = st.floats(11, 18).map(lambda exponent: 10.0**exponent)


@cache
def defaults() -> TrainParams:
    return check_section("train", read_params_file()["train"], TrainParams)


@cache
def counted(width: int) -> Counted:
    params = defaults().model_copy(update={"model": model_of(width, LENGTH)})
    model = model_without_weights(params, VOCABULARY)
    return Counted(width, model.num_parameters(), flops_per_token(model, LENGTH))


def chosen(flops: float, corpus_tokens: float | None = None) -> Recipe:
    found = best_recipe(flops, LENGTH, counted, corpus_tokens)
    assert found is not None
    return found


@settings(max_examples=25, deadline=None)
@given(flops=FLOPS)
def test_the_recipe_takes_the_compute_that_was_asked_for_to_within_half_a_step(flops: float) -> None:
    recipe = chosen(flops)

    assert abs(recipe.flops - flops) <= flops / recipe.steps / 2 * 1.1
    assert recipe.flops == pytest.approx(flops, rel=0.03)
    assert recipe.steps >= LEAST_STEPS


@settings(max_examples=25, deadline=None)
@given(flops=FLOPS, factor=st.floats(1, 100))
def test_more_compute_means_no_smaller_a_model_no_smaller_a_batch_and_fewer_expected_bits(
    flops: float, factor: float
) -> None:
    less, more = chosen(flops), chosen(flops * factor)

    def bits(recipe: Recipe) -> float:
        return LAW.bits_per_byte(recipe.model.parameters, recipe.flops, recipe.tokens)

    assert more.model.parameters >= less.model.parameters
    assert bits(more) <= bits(less) * 1.002  # steps are whole numbers


@settings(max_examples=25, deadline=None)
@given(flops=FLOPS)
def test_no_other_width_is_expected_to_end_lower(flops: float) -> None:
    recipe = chosen(flops)

    def bits(width: int) -> float:
        model = counted(width)
        return LAW.bits_per_byte(model.parameters, flops, flops / model.flops_per_token)

    others = [width for width in widths() if width <= 2 * recipe.model.width]
    enough = [width for width in others if recipe_of(counted(width), flops, LENGTH).steps >= LEAST_STEPS]
    assert bits(recipe.model.width) == min(map(bits, enough))


@settings(max_examples=25, deadline=None)
@given(flops=FLOPS, corpus_tokens=st.floats(1e5, 1e9))
def test_a_corpus_that_would_be_repeated_asks_for_a_larger_model(flops: float, corpus_tokens: float) -> None:
    repeated, new = chosen(flops, corpus_tokens), chosen(flops)

    assert repeated.model.parameters >= new.model.parameters
    assert repeated.tokens <= new.tokens * 1.05


def test_the_models_are_those_of_a_fixed_rule() -> None:
    assert counted(64).parameters == 666_240
    assert [width for width in widths() if width <= 640] == [*range(32, 257, 32), *range(320, 641, 64)]
    for width in widths():
        model = model_of(width, LENGTH)
        assert model["num_attention_heads"] * model["head_dim"] == width


def test_the_default_has_the_size_that_the_dial_chooses_for_its_compute() -> None:
    """Its batch and rates are its own: 8 rows can be shared by 2, 4 or 8 devices."""
    train = defaults()
    flops = counted(64).flops_per_token * train.global_batch_size * train.max_steps * LENGTH

    assert model_of(chosen(flops, CORPUS_TOKENS).model.width, LENGTH) == train.model


def test_larger_batches_learn_faster_and_wider_models_slower() -> None:
    small, large = recipe_of(counted(128), 1.9e13, LENGTH), recipe_of(counted(128), 1.9e15, LENGTH)
    wide = recipe_of(counted(512), small.tokens * counted(512).flops_per_token, LENGTH)

    assert large.rows > 4 * small.rows
    assert large.values["optimizer.muon_learning_rate"] == pytest.approx(
        small.values["optimizer.muon_learning_rate"] * (large.rows / small.rows) ** 0.5, rel=0.05
    )
    for rate in ("optimizer.adamw_learning_rate", "optimizer.muon_learning_rate"):
        assert wide.values[rate] == pytest.approx(small.values[rate] / 2, rel=0.05)  # two digits


def test_too_little_compute_for_any_model_has_no_recipe() -> None:
    assert best_recipe(1e9, LENGTH, counted) is None


def test_the_experiment_of_the_presets_runs_what_the_dial_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    today, found = read_params_file(), {}
    for cell in cells_of("presets", read_experiment("presets")):
        if tflop := re.fullmatch(r"dial at (\d+) TFLOP", cell.levels["preset"]):
            found[int(tflop[1])] = flatten(cell.params(today)["train"])

    assert [*found] == [1, 5, 20, 53, 200]
    for tflop, values in found.items():
        recipe = chosen(tflop * 1e12, CORPUS_TOKENS)
        written = {"train": deepcopy(today["train"])}
        for key, value in recipe.values.items():
            put(written, f"train.{key}", value)
        assert flatten(written["train"]) == values, tflop
