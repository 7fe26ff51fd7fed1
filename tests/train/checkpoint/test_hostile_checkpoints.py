"""A checkpoint may come from a bucket that others write to: its numbers are read, its code is not run."""

import json
import os
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from stages.runtime.atomic import file_sha256
from stages.train.checkpoint.manifest import DataOnlyPlanner, check_metadata, fault
from tests.train.small_run import run_workers, write_params, write_project

CONSTANT = {"schedule__name": "constant", "checkpoint_every_steps": 3}


class Call:
    """Pickled, it is a call of `os.mkdir`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 steps with the checkpoints of 3 and 6."""
    folder = write_project(tmp_path_factory.mktemp("trained"), **CONSTANT, max_steps=6)
    run_workers(folder, 1)
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path) -> Path:
    """A copy, checkpoints included, that trains on."""
    folder = Path(shutil.copytree(trained, tmp_path / "project"))
    write_params(folder, **CONSTANT, max_steps=8)
    return folder


def newest(project: Path) -> Path:
    return max((project / ".parrotflow/checkpoints").glob("*/step-*"))


def replace(checkpoint: Path, name: str, content: bytes) -> None:
    """Change a file and its hash, as somebody who can write to the bucket would."""
    (checkpoint / name).write_bytes(content)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["sha256"][name] = file_sha256(checkpoint / name)
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def test_checkpoints_as_they_are_written_have_no_fault(project: Path) -> None:
    assert fault(newest(project)) == ""


def test_metadata_that_calls_a_function_is_skipped_and_nothing_is_called(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    replace(newest(project), ".metadata", pickle.dumps(Call(project / "called")))
    run_workers(project, 1)
    said = capfd.readouterr().out
    assert "step-00000006 is skipped: .metadata is not torch's: it asks for posix.mkdir" in said
    assert "continuing at step 3 of 8" in said
    assert not (project / "called").exists()


def test_a_value_that_calls_a_function_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "value"
    torch.save(Call(tmp_path / "called"), file)
    with file.open("rb") as value, pytest.raises(pickle.UnpicklingError):
        DataOnlyPlanner().load_bytes(None, value)  # type: ignore[arg-type]
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("content", ['{"sha256": {}}', "{}", "", '{"step": 6, "training_loss": 1.0, "max_steps": 6}'])
def test_a_manifest_that_lacks_something_is_skipped(
    project: Path, capfd: pytest.CaptureFixture[str], content: str
) -> None:
    (newest(project) / "manifest.json").write_text(content)
    run_workers(project, 1)
    said = capfd.readouterr().out
    assert "step-00000006 is skipped: it has no complete manifest.json" in said
    assert "continuing at step 3 of 8" in said


def test_a_manifest_without_files_is_skipped(project: Path) -> None:
    manifest = json.loads((newest(project) / "manifest.json").read_text())
    (newest(project) / "manifest.json").write_text(json.dumps(manifest | {"sha256": {}}))
    assert fault(newest(project)) == ".metadata is missing or damaged"


@dataclass
class Attribute:
    """Pickled as Python 3.11.0 to 3.11.3 pickles a member of an enum."""

    owner: object
    name: str

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (self.owner, self.name)


def test_metadata_names_members_of_enums_by_getattr_in_some_versions_of_python(tmp_path: Path) -> None:
    file = tmp_path / ".metadata"
    file.write_bytes(pickle.dumps(Attribute(_MEM_FORMAT_ENCODING, "TORCH_PRESERVE_FORMAT")))

    check_metadata(file)


@pytest.mark.parametrize(("owner", "name"), [(Path, "unlink"), (_MEM_FORMAT_ENCODING, "__init_subclass__")])
def test_metadata_gets_nothing_else_by_getattr(tmp_path: Path, owner: object, name: str) -> None:
    file = tmp_path / ".metadata"
    file.write_bytes(pickle.dumps(Attribute(owner, name)))

    with pytest.raises(pickle.UnpicklingError, match=f"it asks for the attribute {name}"):
        check_metadata(file)
