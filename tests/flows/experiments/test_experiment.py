"""An experiment's file is refused with the key, the value and what is allowed."""

import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from flows.experiments.cells import cells_of, read_experiment
from flows.experiments.experiment import EXPERIMENTS, experiment_path, results_folder
from stages.runtime.errors import UserError
from tests.flows.experiments.small_experiment import EXPERIMENT, write_experiment
from tests.small_project import ROOT, changed


def claiming(**changes: Any) -> dict[str, Any]:
    """A claim about the mean loss, with other values of its condition."""
    condition = {"mean": "loss", "value": {"below": 1}} | changes
    return {
        "claims": [{"says": "?", "holds_if": [{key: value for key, value in condition.items() if value is not None}]}]
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"color": "red"}, "experiments/toy.yaml: color: unknown key (value 'red')"),
        ({"seeds": {"keys": [], "values": [1]}}, "seeds.keys = []"),
        ({"metrics": {"loss": EXPERIMENT["metrics"]["loss"] | {"source": "scores"}}}, "metrics.loss.source = 'scores'"),
        ({"question": date(2026, 11, 27)}, "Object of type date is not JSON serializable; quote it"),
        ({"figures": {"loss": {"kind": "bars"}}}, "figures.loss.kind = 'bars': expected one of 'curves', 'points'"),
        (changed({"tables": EXPERIMENT["tables"]}, tables__main__rows=["depth"]), "tables.main.rows: no `depth`"),
        (claiming(mean="los"), "claims.0.holds_if.0: no `los`; choose from: loss, cost, half"),
        (claiming(levels={"depth": "1"}), "claims.0.holds_if.0.levels: no `depth`; choose from: size, recipe"),
        (claiming(mean=None, exponent="lwa"), "claims.0.holds_if.0: no `lwa`; choose from: law"),
        (claiming(mean=None), "claims.0.holds_if.0: give exactly one of mean, difference, exponent"),
        (claiming(value=None), "give bounds of at least one of value, low, high"),
        (
            claiming(value={"under": 1}),
            "value.under.[key] = 'under': Input should be 'below', 'at_most', 'above' or 'at_least'",
        ),
        (claiming(mean=None, difference="loss"), "give two different levels of one axis for a difference"),
        (claiming(mean=None, exponent="law", levels={"size": "w1"}), "a fit uses all runs; remove levels"),
        (claiming(mean=None, exponent="law", value={"below": "loss"}), "a fit can be compared with numbers only"),
        (
            {"comparisons": {"main": EXPERIMENT["comparisons"]["recipes"]}},
            "tables, comparisons: main: a comparison is a table too",
        ),
        (
            {"axes": {"size": {"param": ["a", "b"], "values": [1]}}},
            "axes.size: param = ['a', 'b']: give one dotted key",
        ),
        ({"axes": {"size": {"param": "model.width", "values": [1, "1"]}}}, "axes.size: values: 1 is listed twice"),
        (
            {"axes": EXPERIMENT["axes"] | {"cost": {"low": {}}, "seed": {"one": {}}}},
            "axes: cost, seed: another column of runs.csv has this name; rename the axis",
        ),
    ],
)
def test_a_fault_is_named_with_the_file_the_key_the_value_and_what_is_allowed(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write_experiment(tmp_path, **changes)

    with pytest.raises(UserError) as error:
        read_experiment("toy")

    assert message in str(error.value)
    assert str(error.value).startswith("experiments/toy.yaml: ")


def test_a_key_that_is_there_twice_is_refused_since_only_one_of_them_would_count(tmp_path: Path) -> None:
    write_experiment(tmp_path)
    with (tmp_path / "experiments/toy.yaml").open("a") as file:
        file.write("question: And this?\n")

    expected = r'^experiments/toy\.yaml: line \d+: not valid YAML: found duplicate key "question" with value '
    with pytest.raises(UserError, match=expected):
        read_experiment("toy")


def test_a_name_may_have_a_point(tmp_path: Path) -> None:
    assert experiment_path("scaling.v2") == experiment_path("experiments/scaling.v2.yaml")
    assert results_folder("scaling.v2") == results_folder("experiments/scaling.v2.yaml")
    assert results_folder("scaling.v2") == EXPERIMENTS / "scaling.v2"


def test_a_missing_file_is_answered_with_those_that_exist(tmp_path: Path) -> None:
    write_experiment(tmp_path)

    with pytest.raises(UserError, match=r"experiments/other\.yaml: not found; experiments/ has toy"):
        read_experiment("other")


def test_the_experiment_to_copy_is_read_and_its_cells_change_params_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    copy = shutil.copyfile("conf/new_experiment.yaml", tmp_path / "rates.yaml")

    assert len(cells_of(str(copy), read_experiment(str(copy)))) == 6
