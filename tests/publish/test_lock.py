import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.formats.revision.provenance import ancestors
from stages.publish.lock import in_temporary_workspace, lock_of, published_stages, settings
from stages.runtime.errors import UserError
from stages.runtime.preflight import recorded_stages
from stages.runtime.stage_code import code_of
from tests.publish.publishing import record
from tests.trained_project import write_sections


def refused(match: str) -> None:
    with pytest.raises(UserError, match=match):
        published_stages()


def test_a_project_that_is_as_recorded_has_the_stages_before_publish_in_their_order(project: Path) -> None:
    assert list(published_stages()) == ["clean", "tokenize", "train", "evaluate", "yardstick", "card"]


def test_a_section_of_parameters_that_was_edited_is_named(project: Path) -> None:
    write_sections(project, clean__seed=yaml.safe_load(Path("params.yaml").read_text())["clean"]["seed"] + 7)

    refused(r"^params\.yaml: clean is modified since clean ran; only results that match dvc\.lock .* `dvc repro`$")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("corpus/more.py", r"^corpus: is modified since clean read it; "),
        ("deploy/launch/cpu.yaml", r"^deploy/launch/cpu\.yaml: is modified since train read it; "),
        ("model/config.json", r"^model: is modified since train made it; "),
        ("reports/train.json", r"^reports/train\.json: is modified since train made it; "),
    ],
)
def test_an_input_or_output_that_was_edited_is_named(project: Path, path: str, said: str) -> None:
    with Path(path).open("a") as opened:
        opened.write("\n")

    refused(said)


def test_a_command_that_was_edited_is_named_with_the_one_that_ran(project: Path) -> None:
    pipeline = Path("dvc.yaml")
    pipeline.write_text(pipeline.read_text().replace("cmd: 'true'", "cmd: 'false'", 1))

    refused(r"^dvc\.yaml: card: the command differs from the one that ran: true; ")


def test_a_stage_that_is_not_recorded_is_named(project: Path) -> None:
    stages = recorded_stages(Path("dvc.lock"))
    del stages["card"]
    Path("dvc.lock").write_bytes(lock_of(stages))

    refused(r"^dvc\.lock: no stage has made data/card: run `dvc repro`$")


def test_an_output_that_is_not_here_contradicts_nothing(project: Path) -> None:
    shutil.rmtree("data/clean")

    assert "clean" in published_stages()


def test_code_that_was_edited_since_its_stage_ran_is_named(project: Path) -> None:
    Path("stages/mine").mkdir(parents=True)
    Path("data/code").mkdir()
    module = Path("stages/mine/__main__.py")
    module.write_text("x = 1\n")
    Path("data/code/mine.json").write_text(code_of("stages.mine").text)
    pipeline = yaml.safe_load(Path("dvc.yaml").read_text())
    pipeline["stages"]["train"]["deps"].append("data/code/mine.json")
    Path("dvc.yaml").write_text(yaml.safe_dump(pipeline))
    record()
    assert published_stages()

    module.write_text("x = 1  # a remark\n")
    assert published_stages()
    module.write_text("x = 2\n")
    refused(r"^data/code/mine\.json: stages/mine/__main__\.py modified; ")


def test_the_files_that_say_what_ran_are_kept_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("params.yaml", "data/code/train.json", "requirements.lock", "dvc.yaml")
    Path("data/code").mkdir(parents=True)
    for name in names:
        Path(name).write_text(f"# {name}\n")

    found = settings({"train": {"cmd": "a", "deps": [{"path": "data/code/train.json", "md5": "0"}]}})

    assert found.pop("record/dvc.lock")
    assert found == {f"record/{name}": Path(name).read_bytes() for name in names}


def test_the_lock_of_a_run_reads_as_it_was(tmp_path: Path) -> None:
    params: dict[str, Any] = {"params.yaml": {"train": {"rate": 1e-05, "note": "1.0"}}}
    stages = {"b": {"cmd": "b", "params": params}, "a": {"cmd": "a", "params": params}}
    (tmp_path / "dvc.lock").write_bytes(lock_of(stages))

    assert recorded_stages(tmp_path / "dvc.lock") == stages
    assert list(recorded_stages(tmp_path / "dvc.lock")) == ["b", "a"]


def test_every_stage_comes_after_those_it_depends_on_whatever_their_names() -> None:
    stages = {
        "a": {"deps": [{"path": "z/1"}], "outs": [{"path": "a"}]},
        "m": {"deps": [{"path": "a/file"}, {"path": "z"}], "outs": [{"path": "m"}]},
        "z": {"deps": [], "outs": [{"path": "z"}]},
    }

    assert list(ancestors(stages, ["m"])) == ["z", "a", "m"]
    assert ancestors(stages, ["elsewhere"]) == {}


@pytest.mark.parametrize(
    ("folder", "temporary"),
    [(".dvc/tmp/exps/abc", True), (".parrotflow/sweep/adamw-1", True), ("sweep/adamw-1", False)],
)
def test_workspaces_of_experiments_and_of_a_sweeps_cells_are_temporary(folder: str, temporary: bool) -> None:
    assert in_temporary_workspace(Path("/home/me/project") / folder) == temporary
