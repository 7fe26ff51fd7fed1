import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from pydantic import ValidationError

from stages.evaluate.generate.params import HubSet
from stages.evaluate.generate.texts import open_sets
from stages.runtime.entry import EXIT_USER_ERROR, UserError

ROW = {"task_id": "A/0", "prompt": "p", "entry_point": "f", "canonical_solution": "s", "test": "def check(c): pass"}


def hub_set(repository: Path | str, **changes: Any) -> HubSet:
    values = {"kind": "hub", "repository": str(repository), "configuration": None, "split": "test", "revision": ""}
    return HubSet.model_validate({**values, "language": "python", "stop": ["\nx"], **changes})


@pytest.fixture
def data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "test.jsonl").write_text(json.dumps(ROW) + "\n")
    return folder


def test_a_data_set_of_the_hub_is_read_as_a_folder_laid_out_as_one(data_set: Path) -> None:
    (opened,) = open_sets([hub_set(data_set)])

    assert [(problem.task_id, problem.kind) for problem in opened.problems] == [("A/0", "humaneval")]
    assert opened.stop == ("\nx",)


def test_a_data_set_that_is_none_of_problems_is_refused(data_set: Path) -> None:
    (data_set / "test.jsonl").write_text('{"text": "x"}\n')

    with pytest.raises(UserError, match=r"row 1: no field 'task_id'"):
        open_sets([hub_set(data_set)])
    with pytest.raises(UserError, match=r"^generate.problems.sets: data set `.*` cannot be read .*; correct its name"):
        open_sets([hub_set(data_set, split="nowhere")])


def test_while_datasets_is_offline_a_retry_does_not_help(data_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)  # as HF_DATASETS_OFFLINE does

    with pytest.raises(UserError, match=r"^generate.problems.sets: data set `me/set` .*HF_DATASETS_OFFLINE") as caught:
        open_sets([hub_set("me/set", revision="0" * 40)])

    assert caught.value.exit_code == EXIT_USER_ERROR


def test_a_revision_that_can_move_is_refused() -> None:
    with pytest.raises(ValidationError, match="revision `main` is not a commit"):
        hub_set("owner/name", revision="main")


def test_two_sets_with_one_task_id_are_refused(data_set: Path) -> None:
    with pytest.raises(UserError, match="task_id `A/0` occurs more than once"):
        open_sets([hub_set(data_set), hub_set(data_set)])
