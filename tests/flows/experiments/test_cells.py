"""From an experiment's file to runs, and to the words of a command that makes their parameters."""

from pathlib import Path
from typing import Any

import pytest

from flows.experiments.cells import cells_of, check_cells, read_experiment
from flows.experiments.experiment import experiment_path
from stages.runtime.errors import UserError
from stages.runtime.section import read_params_file
from tests.flows.experiments.small_experiment import EXPERIMENT, small_experiment, write_experiment
from tests.small_project import ROOT


def checked(name: str) -> None:
    check_cells(experiment_path(name), cells_of(name, read_experiment(name)), read_params_file())


def test_axes_are_combined_and_each_combination_runs_with_each_seed(tmp_path: Path) -> None:
    _, cells = small_experiment(tmp_path)

    assert [(*cell.levels.values(), cell.seed) for cell in cells[:4]] == [
        ("small", "a", 0),
        ("small", "a", 1),
        ("small", "a", 2),
        ("small", "b", 0),
    ]
    assert len(cells) == 12
    assert cells[3].overrides == {"model.width": 1, "model.name": "b", "model.seed": 0}


def test_a_level_or_a_seed_that_is_added_leaves_the_ids_of_the_other_cells(tmp_path: Path) -> None:
    _, before = small_experiment(tmp_path)
    axes = EXPERIMENT["axes"] | {"size": {"tiny": {"model.width": 0}} | EXPERIMENT["axes"]["size"]}
    _, after = small_experiment(tmp_path, axes=axes, seeds={"keys": ["model.seed"], "values": [3, 2, 1, 0]})

    assert {cell.id for cell in before} < {cell.id for cell in after}
    assert len(after) == 24
    assert {cell.name for cell in before} < {cell.name for cell in after}


def test_how_a_training_is_followed_leaves_the_ids_of_all_cells(tmp_path: Path) -> None:
    _, before = small_experiment(tmp_path)
    _, after = small_experiment(tmp_path, base={"monitoring.evaluate_every_steps": 5})

    assert [cell.id for cell in after] == [cell.id for cell in before]
    assert all(cell.overrides["monitoring.evaluate_every_steps"] == 5 for cell in after)


def test_a_parameter_with_its_values_is_short_for_levels_which_may_be_called_by_numbers(tmp_path: Path) -> None:
    widths = {"caption": "", "axis": "width", "baseline": 1, "metrics": ["loss"]}
    experiment, cells = small_experiment(tmp_path, axes={"width": {"param": "model.width", "values": [1, 2]}},
                                         comparisons={"widths": widths}, tables={}, figures={}, claims=[])  # fmt: skip

    assert [cell.levels["width"] for cell in cells[::3]] == ["1", "2"]
    assert cells[3].overrides["model.width"] == 2
    assert experiment.comparisons["widths"].baseline == "1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": {"modle.width": 1}}, "cell small, a, seed 0: modle.width: params.yaml has no `modle`"),
        ({"axes": {"size": {"s": {"model.width": 1}}, "recipe": {"a": {"model.width": 2}}}}, "both set model.width"),
        ({"axes": {"size": {"s": {}}, "recipe": {"a": {}, "b": {}}}}, "the same run as cell s, a, seed 0"),
        (
            {
                "axes": {
                    "size": {"x, y": {"model.width": 1}, "x": {"model.width": 2}},
                    "recipe": {"z": {"model.name": "z"}, "y, z": {"model.name": "y"}},
                }
            },
            "cell x, y, z, seed 0: another cell has the same label",
        ),
        (
            {
                "base": {"model.shape": {"width": 3}, "model.shape.width": 4},
                "axes": {"size": {"s": {}}, "recipe": {"a": {"model.shape": {"width": 2}}}},
            },
            "model.shape overwrites model.shape.width; list model.shape first",
        ),
        ({"base": {"mood": "good"}}, "mood=good: no such group"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_before_anything_runs(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (tmp_path / "conf").mkdir()
    write_experiment(tmp_path, **changes)

    with pytest.raises(UserError, match=r"^experiments/toy\.yaml: ") as error:
        checked("toy")

    assert message in str(error.value)


def test_values_are_checked_by_the_sections_of_params_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes, seeds = {"size": {"small": {}}, "recipe": {"a": {}}}, {"keys": ["train.seed"], "values": [0]}
    write_experiment(tmp_path, base={"train.max_steps": "many"}, axes=axes, seeds=seeds)
    monkeypatch.chdir(ROOT)

    with pytest.raises(UserError, match=r"train\.max_steps = 'many': .*integer.* \(cell small, a, seed 0\)"):
        checked(str(tmp_path / "experiments/toy.yaml"))
