from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from stages.publish.lock import in_temporary_workspace, lock_of, put, read_lock, settings, stages_of_another_pipeline
from stages.runtime.entry import UserError
from stages.runtime.stage_code import StageCode
from tests.publish.repository import md5_of_dvc, write

PARAMS = """\
# what to compute
train:
  max_steps: 500     # optimizer steps
  seed: 0
  optimizer: {name: muon, epsilon: 1.0e-8}
  start_from: null   # a folder
publish:
  name: tiny
"""
PIPELINE = "stages:\n  train: {cmd: python -m stages.train, deps: [data/code/train.json]}\n"


def entry(train: dict[str, Any], name: str = "train", **versions: str) -> dict[str, Any]:
    """Of a stage that has just run with these parameters and these versions of libraries."""
    file = f"data/code/{name}.json"
    write({file: StageCode({"stages/train/__main__.py": "f" * 32}, versions).text})
    return {
        "cmd": "python -m stages.train",
        "deps": [{"path": file, "md5": md5_of_dvc(Path(file))}],
        "params": {"params.yaml": {"train": train}},
    }


RAN = {"max_steps": 500, "seed": 0, "optimizer": {"name": "muon", "epsilon": 1e-8}, "start_from": None}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write({"params.yaml": PARAMS, "dvc.yaml": PIPELINE})
    write({"requirements.lock": "torch==2.13.0\ntorchvision==1.0\n"})
    return tmp_path


def test_files_that_say_what_ran_are_kept_byte_for_byte() -> None:
    found = settings({"train": entry(RAN, torch="2.13.0")})

    assert found.pop("record/dvc.lock")
    assert found == {
        f"record/{name}": Path(name).read_bytes()
        for name in ("params.yaml", "data/code/train.json", "requirements.lock", "dvc.yaml")
    }


def test_a_parameter_that_was_edited_since_has_the_value_that_ran_and_its_comment() -> None:
    ran = RAN | {"max_steps": 100, "optimizer": {"name": "adamw", "epsilon": 1e-8, "betas": [0.9, 0.95]}}

    text = settings({"train": entry(ran)})["record/params.yaml"].decode()

    assert YAML(typ="safe").load(text) == {"train": ran, "publish": {"name": "tiny"}}
    assert "# what to compute\n" in text
    assert "  max_steps: 100     # optimizer steps\n" in text
    assert "  start_from: null   # a folder\n" in text


def test_a_library_that_was_upgraded_since_is_pinned_as_it_ran() -> None:
    found = settings({"train": entry(RAN, torch="2.12.1")})

    assert found["record/requirements.lock"] == b"torch==2.12.1\ntorchvision==1.0\n"


def test_stages_that_ran_with_different_versions_are_no_one_revision() -> None:
    stages = {"train": entry(RAN, torch="2.12.1"), "other": entry(RAN, "other", torch="2.13.0")}

    with pytest.raises(UserError, match=r"code/other.json: its stage ran with torch 2.13.0, another one with 2.12.1"):
        settings(stages)


def test_a_file_of_code_that_is_another_by_now_is_not_kept() -> None:
    stages = {"train": entry(RAN, torch="2.12.1")}
    entry(RAN, torch="2.13.0")

    found = settings(stages)

    assert "record/data/code/train.json" not in found
    assert found["record/requirements.lock"] == Path("requirements.lock").read_bytes()


def test_stages_that_ran_with_different_values_are_no_one_revision() -> None:
    with pytest.raises(UserError, match=r"dvc.lock: other ran with train = .*no one state .* run `dvc repro`"):
        settings({"train": entry(RAN), "other": entry(RAN | {"seed": 1})})


def test_a_stage_whose_command_or_dependencies_were_edited_since_is_named() -> None:
    ran = entry(RAN)
    assert stages_of_another_pipeline({"train": ran}) == []
    assert stages_of_another_pipeline({"train": ran | {"cmd": "python -m stages.other"}}) == ["train"]
    assert stages_of_another_pipeline({"train": ran | {"deps": []}}) == ["train"]


def test_the_lock_of_a_run_reads_as_it_was(tmp_path: Path) -> None:
    stages = {"b": entry(RAN), "a": entry(RAN | {"rate": 1e-05, "note": "1.0"})}
    (tmp_path / "dvc.lock").write_bytes(lock_of(stages))

    assert read_lock(tmp_path / "dvc.lock") == stages
    assert list(read_lock(tmp_path / "dvc.lock")) == ["b", "a"]


leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
trees = st.dictionaries(
    st.text(alphabet="abc", min_size=1, max_size=2),
    st.recursive(leaves, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=6),
    max_size=3,
)


@given(trees, trees)
def test_putting_a_value_gives_that_value_whatever_was_there(old: dict[str, Any], new: dict[str, Any]) -> None:
    document = {"x": old}

    put(document, ["x"], new)

    assert document == {"x": new}


@pytest.mark.parametrize(
    ("folder", "temporary"),
    [
        (".dvc/tmp/exps/abc", True),
        (".parrotflow/sweep/adamw-1", True),
        (".parrotflow/sweep-check/adamw-1/project", True),
        ("sweep/adamw-1", False),
    ],
)
def test_workspaces_of_experiments_and_of_a_sweeps_cells_are_temporary(folder: str, temporary: bool) -> None:
    assert in_temporary_workspace(Path("/home/me/project") / folder) == temporary
