"""The levels of a drawn axis follow from its seed."""

from pathlib import Path
from typing import Any

import pytest

from flows.experiments.cells import read_experiment
from stages.runtime.errors import UserError
from tests.flows.experiments.small_experiment import write_experiment

SPACE = {"model.width": {"low": 1, "high": 1000, "log": True}}


def drawn(**axis: Any) -> list[dict[str, Any]]:
    recipe = {"a": {"model.name": "a"}}
    nothing: dict[str, Any] = {"comparisons": {}, "tables": {}, "figures": {}, "claims": [], "fits": {}}
    write_experiment(Path(), axes={"width": {"space": SPACE, **axis}, "recipe": recipe}, **nothing)
    return list(read_experiment("toy").axes["width"].values())


def test_random_levels_follow_from_the_seed_and_more_of_them_keep_the_first() -> None:
    five = drawn(draw=5)

    assert drawn(draw=8)[:5] == five
    assert drawn(draw=5, seed=1) != five
    assert len({level["model.width"] for level in five}) == 5
    assert all(1 <= level["model.width"] <= 1000 for level in five)


def test_a_number_is_drawn_within_its_bounds_with_three_digits_and_each_whole_number_alike() -> None:
    space = {"model.width": {"low": 1, "high": 9, "integer": True}}
    assert sorted(level["model.width"] for level in drawn(draw=20, space=space)) == [*range(1, 10)]
    space = {"model.width": {"low": 0.5, "high": 0.9}}
    assert all(
        0.5 <= level["model.width"] <= 0.9 and len(str(level["model.width"])) <= 5
        for level in drawn(draw=20, space=space)
    )


def test_a_space_with_fewer_levels_is_drawn_whole() -> None:
    assert sorted(level["model.name"] for level in drawn(draw=9, space={"model.name": {"choices": ["x", "y"]}})) == [
        "x",
        "y",
    ]


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        ({"draw": 3, "by": "tpe"}, r"axes\.width\.by"),
        ({"draw": 3, "space": {"model.width": {"low": 2, "high": 1}}}, r"axes\.width\.space\.model\.width"),
        ({"draw": 0}, r"axes\.width\.draw = 0"),
    ],
)
def test_a_draw_that_cannot_be_made_is_refused_with_its_key(axis: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        drawn(**axis)
