"""`model/step-N` is the model of this run's step N, for every N of `export_steps`, whatever happened before."""

from pathlib import Path
from typing import Any

import pytest

from stages.formats.model_folder import weights_sha256
from tests.train.small_run import copy_of, run_workers, write_params, write_project

WSD: dict[str, Any] = {"schedule__name": "wsd", "schedule__decay_share": 0.5}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that could run."""
    return write_project(tmp_path_factory.mktemp("inputs"))


def exported(project: Path, **changes: Any) -> dict[str, str]:
    """Train; the sha256 of each model."""
    write_params(project, **changes)
    run_workers(project, 1)
    return {path.name: weights_sha256(path) for path in [project / "model", *project.glob("model/step-*")]}


def test_steps_that_are_added_later_are_exported_all_the_same(inputs: Path, tmp_path: Path) -> None:
    project, other = (copy_of(inputs, tmp_path / name) for name in ("project", "other"))
    exported(project, max_steps=6)
    later = exported(project, max_steps=6, export_steps="log2")
    assert set(later) == {"model", "step-00000001", "step-00000002", "step-00000004"}
    assert later == exported(other, max_steps=6, export_steps=[1, 2, 4])


def test_a_shorter_run_never_ships_the_model_of_a_longer_one(inputs: Path, tmp_path: Path) -> None:
    project, alone = (copy_of(inputs, tmp_path / name) for name in ("project", "alone"))
    long = exported(project, **WSD, max_steps=20, export_steps=[4, 8])
    short = exported(project, **WSD, max_steps=10, export_steps=[4, 8])
    assert short == exported(alone, **WSD, max_steps=10, export_steps=[4, 8])
    assert short["step-00000004"] == long["step-00000004"]
    assert short["step-00000008"] != long["step-00000008"]


def test_a_model_that_was_lost_is_made_again(inputs: Path, tmp_path: Path) -> None:
    project = copy_of(inputs, tmp_path / "project")
    before = exported(project, max_steps=6, export_steps=[2])
    (lost,) = (project / ".parrotflow/checkpoints").glob("*/exports/*")
    lost.rename(project / "elsewhere")
    assert exported(project, max_steps=6, export_steps=[2]) == before
