"""A search's file is refused with the key, the value and what is allowed, before anything runs."""

from pathlib import Path
from typing import Any

import pytest

from flows.search.search import prepared_search, run_search
from flows.search.search_file import SEARCHES, read_search
from stages.runtime.entry import UserError
from tests.flows.search.small_search import SEARCH, InProcess, write_search
from tests.small_project import ROOT, changed

RATE = SEARCH["space"]["model.rate"]


def with_rate(**changes: Any) -> dict[str, Any]:
    return {"space": {"model.rate": RATE | changes}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"color": "red"}, "color: unknown key (value 'red')"),
        ({"sampler": "grid"}, "sampler = 'grid': Input should be 'random' or 'tpe'"),
        ({"at_once": 0}, "at_once = 0"),
        ({"space": {}}, "space = {}"),
        ({"budget": {}}, "budget: give at least one of runs, hours, compute"),
        ({"budget": {"hours": 0}}, "budget.hours = 0"),
        ({"objective": {"source": "scores.json", "better": "lower"}}, "objective.source = 'scores.json'"),
        (with_rate(low=2), "space.model.rate: low = 2 is not below high = 1"),
        (with_rate(low=0), "space.model.rate: `log` needs a `low` above 0 and no `step`"),
        (with_rate(step=0.1), "space.model.rate: `log` needs a `low` above 0 and no `step`"),
        (with_rate(integer=True), "space.model.rate: with `integer`, `low`, `high` and `step` are whole numbers"),
        (with_rate(log=False, step=0.3), "space.model.rate: `high` is not a number of steps of 0.3 above `low`"),
        (with_rate(choices=[1]), "space.model.rate: give either `choices`, at least one, or `low` and `high`"),
        ({"space": {"model.rate": {"low": 1}}}, "space.model.rate: give either `choices` or `low` and `high`"),
        ({"space": {"model.rate": {"choices": []}}}, "give either `choices`, at least one, or"),
        ({"space": {"rate": RATE}}, "space.rate: a range needs a dotted key of params.yaml"),
        ({"space": {"rate": {"choices": [1, 2]}}}, "rate=1: no such group"),
        ({"space": {"modl.rate": RATE}}, "modl.rate: params.yaml has no `modl`"),
        ({"space": SEARCH["space"] | {"model.depth": {"choices": [1]}}}, "shape and model.depth both set model.depth"),
        (
            {"space": SEARCH["space"] | {"more": {"choices": {"none": {}, "deep": {"model.depth": 9}}}}},
            "shape and more both set model.depth",
        ),
        ({"targets": ["trian"]}, "targets: "),
        ({"objective": {"source": "other.json:loss", "better": "lower"}}, "other.json: train and the stages before"),
        (changed({"stop_early": SEARCH["stop_early"]}, stop_early__steps="model.name"), "stop_early.steps: model.name"),
    ],
)
def test_a_fault_is_named_with_the_key_the_value_and_what_is_allowed(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write_search(tmp_path, **changes)
    runs = InProcess()

    with pytest.raises(UserError) as error:
        run_search("toy", runs)

    assert message in str(error.value)
    assert runs.ran == []


def test_a_missing_file_is_answered_with_those_that_exist(tmp_path: Path) -> None:
    write_search(tmp_path)

    with pytest.raises(UserError, match=r"searches/toi\.yaml: not found; searches/ has toy"):
        read_search("toi")


@pytest.mark.parametrize("name", ["my search", "a..b", "what?", "-x"])
def test_a_name_that_no_experiment_can_have_is_refused_before_anything_runs(tmp_path: Path, name: str) -> None:
    write_search(tmp_path).with_suffix(".yaml").rename(tmp_path / f"searches/{name}.yaml")

    with pytest.raises(UserError, match=r"DVC experiments of this name, and git takes no `.*`; give the file a name"):
        prepared_search(f"searches/{name}.yaml")


def test_choices_of_a_key_and_of_a_group_are_names_with_what_they_change(tmp_path: Path) -> None:
    space = {"model.width": {"choices": [8, None, True]}, "optimizer": {"choices": ["adamw", "muon"]}}
    write_search(tmp_path, space=space)

    read = read_search("toy").space

    assert read["model.width"].choices == {
        "8": {"model.width": 8},
        "null": {"model.width": None},
        "true": {"model.width": True},
    }
    assert read["optimizer"].choices == {"adamw": {"optimizer": "adamw"}, "muon": {"optimizer": "muon"}}


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / SEARCHES).glob("*.yaml")))
def test_every_bound_and_choice_of_a_shipped_file_is_one_that_params_yaml_takes(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(ROOT)

    assert prepared_search(name).search.question
