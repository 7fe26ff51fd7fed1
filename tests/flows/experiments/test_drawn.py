"""A drawn axis has the levels that its seed, and with TPE the recorded results, determine."""

import sys
from pathlib import Path
from typing import Any

import pytest

from flows.experiments.cells import cells_of, read_experiment
from flows.experiments.experiment import results_folder
from flows.experiments.record import RUNS_FILE, append_run, recorded_runs
from stages.runtime.errors import UserError
from tests.flows.experiments.small_experiment import write_experiment
from tests.flows.experiments.some_runs import finished

SPACE = {"model.width": {"low": 1, "high": 1000, "log": True}}


def drawn(**axis: Any) -> list[dict[str, Any]]:
    recipe = {"a": {"model.name": "a"}}
    nothing: dict[str, Any] = {"comparisons": {}, "tables": {}, "figures": {}, "claims": [], "fits": {}}
    write_experiment(Path(), axes={"width": {"space": SPACE, **axis}, "recipe": recipe}, **nothing)
    return list(read_experiment("toy").axes["width"].values())


def record(loss_of: Any) -> None:
    """Add a result for each cell of the newest level."""
    experiment = read_experiment("toy")
    newest = list(experiment.axes["width"])[-1]
    for cell in cells_of("toy", experiment):
        if cell.levels["width"] == newest:
            run = finished(cell, loss_of(cell.overrides["model.width"]))
            append_run(results_folder("toy") / RUNS_FILE, run)


def test_without_optuna_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)

    with pytest.raises(UserError, match=r"an axis with `draw` needs optuna: pip install -e '\.\[search\]'"):
        drawn(draw=2, by="random", seed=0)


def test_random_levels_follow_from_the_seed_and_more_of_them_keep_the_first() -> None:
    five = drawn(draw=5)

    assert drawn(draw=8)[:5] == five
    assert drawn(draw=5, seed=1) != five
    assert len({level["model.width"] for level in five}) == 5
    assert all(1 <= level["model.width"] <= 1000 for level in five)


def test_tpe_proposes_a_level_after_the_results_of_those_before_and_the_same_again() -> None:
    axis = {"draw": 30, "by": "tpe", "metric": "loss"}
    assert len(drawn(**axis)) == 1
    for _ in range(30):
        record(lambda width: abs(width - 30) / 30)

    levels = drawn(**axis)
    assert len(levels) == 30
    assert drawn(**axis) == levels

    def median_distance(some: list[dict[str, Any]]) -> float:
        return sorted(abs(level["model.width"] - 30) for level in some)[len(some) // 2]

    assert median_distance(levels[20:]) < median_distance(levels[:10])


@pytest.mark.parametrize("axis", [{"draw": 4, "by": "random"}, {"draw": 8, "by": "tpe", "metric": "loss"}])
def test_recorded_levels_stay_if_optuna_draws_others(monkeypatch: pytest.MonkeyPatch, axis: dict[str, Any]) -> None:
    import optuna

    space = {**SPACE, "recipe": {"choices": ["short", "long"]}}
    for file, steps in (("short", 1), ("long", 2)):
        Path("conf/recipe").mkdir(parents=True, exist_ok=True)
        Path(f"conf/recipe/{file}.yaml").write_text(f"# @package _global_\nmodel: {{steps: {steps}}}\n")
    drawn(space=space, **axis)
    for _ in range(6 if axis["by"] == "tpe" else 1):
        record(lambda width: width)
    before = {run.cell for run in recorded_runs(results_folder("toy") / RUNS_FILE)}

    sampler = optuna.samplers.RandomSampler
    monkeypatch.setattr(optuna.samplers, "RandomSampler", lambda seed: sampler(seed=seed + 99))
    monkeypatch.setattr(optuna.samplers, "TPESampler", lambda seed=0, **_: sampler(seed=seed + 99))
    levels = drawn(space=space, **axis)

    assert before <= {cell.id for cell in cells_of("toy", read_experiment("toy"))}
    assert drawn(space=space, **axis) == levels


def test_a_failed_level_counts_and_the_next_one_is_drawn() -> None:
    axis = {"draw": 3, "by": "tpe", "metric": "loss"}
    drawn(**axis)
    for cell in cells_of("toy", read_experiment("toy")):
        failed = finished(cell).model_copy(update={"state": "failed", "reports": {}})
        append_run(results_folder("toy") / RUNS_FILE, failed)

    assert len(drawn(**axis)) == 2


def test_a_space_with_fewer_levels_is_drawn_whole() -> None:
    assert sorted(level["model.name"] for level in drawn(draw=9, space={"model.name": {"choices": ["x", "y"]}})) == [
        "x",
        "y",
    ]


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        ({"draw": 3, "by": "tpe"}, "`by: tpe` needs `metric`"),
        ({"draw": 3, "by": "tpe", "metric": "lost"}, r"axes\.width\.metric: no `lost`; there are loss, cost, half"),
        ({"draw": 3, "space": {"model.width": {"low": 2, "high": 1}}}, r"axes\.width\.space\.model\.width"),
        ({"draw": 0}, r"axes\.width\.draw = 0"),
    ],
)
def test_a_draw_that_cannot_be_made_is_refused_with_its_key(axis: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        drawn(**axis)
