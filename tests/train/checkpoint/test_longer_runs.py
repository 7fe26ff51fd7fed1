"""A run that follows another in the same folder continues from its checkpoints, or says why it cannot.

`model/step-N` is the model of this run's step N, for every N of `export_steps`, whatever happened before.
"""

from pathlib import Path
from typing import Any

import pytest

from stages.formats.model_folder import weights_sha256
from stages.formats.revision.execution import TRAIN_EXECUTION, Execution, differing_facts
from stages.train.hardware import REPAYS_FROM_FLOPS
from tests.small_project import folder_bytes
from tests.train.small_run import copy_of, run_workers, write_params, write_project

HALF_DECAYS = {"schedule__name": "wsd", "schedule__decay_share": 0.5}
"""Of 12 steps the last 6 decay: up to step 6 a longer run has the same rates."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that could run."""
    return write_project(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def project(inputs: Path, tmp_path: Path) -> Path:
    """The same inputs, nothing computed."""
    return copy_of(inputs, tmp_path / "project")


def train(project: Path, capfd: pytest.CaptureFixture[str], **changes: Any) -> list[str]:
    """Run with these parameters; what it says besides its progress and times."""
    write_params(project, **changes)
    run_workers(project, 1)
    return [line for line in capfd.readouterr().out.splitlines() if not line.startswith("step ")]


def checkpoints(project: Path) -> list[str]:
    return sorted(path.name for path in (project / ".parrotflow/checkpoints").glob("*/step-*"))


def test_under_cosine_a_longer_run_starts_afresh_and_says_why(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(project, capfd, max_steps=3) == []
    afresh = "starting afresh, not from another run's checkpoints: "
    assert train(project, capfd, max_steps=6) == [
        f"{afresh}train.max_steps: 3 -> 6",
        f"{afresh}every step's learning rate depends on max_steps; schedules constant and wsd can be extended",
    ]


@pytest.mark.parametrize("schedule", ["constant", "wsd"])
def test_under_constant_and_wsd_a_longer_run_goes_on(
    project: Path, capfd: pytest.CaptureFixture[str], schedule: str
) -> None:
    train(project, capfd, schedule__name=schedule, schedule__decay_share=0.1, max_steps=7)
    (said,) = train(project, capfd, schedule__name=schedule, schedule__decay_share=0.1, max_steps=12)
    assert said.startswith(f"continuing at step {7 if schedule == 'constant' else 6} of 12, from ")


def test_a_batch_that_doubles_only_in_the_longer_run_is_no_reason_to_start_afresh(
    inputs: Path, project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    growing: dict[str, Any] = {"schedule__name": "constant"}
    train(project, capfd, **growing, max_steps=7)
    (said,) = train(project, capfd, **growing, max_steps=12)
    assert said.startswith("continuing at step 7 of 12, from ")
    undisturbed = copy_of(inputs, tmp_path / "undisturbed")
    train(undisturbed, capfd, **growing, max_steps=12)
    assert weights_sha256(project / "model") == weights_sha256(undisturbed / "model")


def test_a_run_that_is_made_worth_compiling_stays_eager_and_one_setting_repeats_all_of_it(
    inputs: Path, project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    constant = {"schedule__name": "constant"}
    train(project, capfd, **constant, max_steps=6)
    monkeypatch.setitem(REPAYS_FROM_FLOPS, "cpu fp32", 0.0)
    train(project, capfd, **constant, max_steps=9)
    extended = Execution.find(project / TRAIN_EXECUTION)
    assert extended is not None
    first, second = extended.sessions
    assert (first.last_step, second.last_step) == (6, 9)
    assert list(differing_facts(*extended.sessions)) == []

    again = copy_of(inputs, tmp_path / "again")
    monkeypatch.setenv("PARROTFLOW_COMPILE", "on" if first.compiled else "off")
    train(again, capfd, **constant, max_steps=9)
    repeated = Execution.find(again / TRAIN_EXECUTION)
    assert repeated is not None
    assert repeated.checkpoints == extended.checkpoints
    assert repeated.weights_sha256 == extended.weights_sha256


def test_a_changed_learning_rate_is_named_with_its_old_and_its_new_value(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(project, capfd, max_steps=3)
    assert train(project, capfd, max_steps=3, optimizer__adamw_learning_rate=0.001) == [
        "starting afresh, not from another run's checkpoints: train.optimizer.adamw_learning_rate: 0.003 -> 0.001"
    ]


def test_a_parameter_without_effect_on_the_weights_changes_nothing(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(project, capfd, max_steps=3)
    before = weights_sha256(project / "model")
    (said,) = train(project, capfd, max_steps=3, checkpoints_kept=5, checkpoint_every_steps=2)
    assert said.startswith("continuing at step 3 of 3, from ")
    assert weights_sha256(project / "model") == before


def test_fewer_points_of_the_curves_continue_and_leave_the_files_of_an_undisturbed_run(
    inputs: Path, project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    constant = {"schedule__name": "constant"}
    train(project, capfd, **constant, max_steps=7)
    fewer = constant | {"max_steps": 12, "log_every_steps": 2, "evaluate_every_steps": 8}
    (said,) = train(project, capfd, **fewer)
    assert said.startswith("continuing at step 7 of 12, from ")
    undisturbed = copy_of(inputs, tmp_path / "undisturbed")
    train(undisturbed, capfd, **fewer)
    assert folder_bytes(project / "reports/curves") == folder_bytes(undisturbed / "reports/curves")
    assert weights_sha256(project / "model") == weights_sha256(undisturbed / "model")


@pytest.mark.parametrize(("name", "had"), [("log_every_steps", 2), ("evaluate_every_steps", 4)])
def test_points_that_were_never_measured_are_not_made_up_the_run_starts_afresh_and_says_so(
    project: Path, capfd: pytest.CaptureFixture[str], name: str, had: int
) -> None:
    train(project, capfd, max_steps=3, log_every_steps=2)
    assert train(project, capfd, max_steps=3, **{"log_every_steps": 2, name: 3}) == [
        f"starting afresh, not from the checkpoint of step 3: its curves lack points that train.{name} asks for; "
        f"a multiple of {had} continues from it"
    ]


def test_a_longer_run_whose_rates_part_before_the_first_checkpoint_left_says_so_and_starts_afresh(
    inputs: Path, project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(project, capfd, **HALF_DECAYS)
    assert checkpoints(project) == ["step-00000009", "step-00000012"]
    assert train(project, capfd, **HALF_DECAYS, max_steps=16) == [
        "starting afresh, not from the checkpoints of the run of 12 steps: a run of 16 has the same learning rates "
        "up to step 6, and the earliest checkpoint is of step 9 (train.milestone_every_steps keeps earlier ones)"
    ]
    undisturbed = copy_of(inputs, tmp_path / "undisturbed")
    train(undisturbed, capfd, **HALF_DECAYS, max_steps=16)
    assert weights_sha256(project / "model") == weights_sha256(undisturbed / "model")


def test_the_checkpoints_of_a_run_that_starts_afresh_are_kept_though_later_ones_of_another_length_lie_there(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(project, capfd, **HALF_DECAYS, max_steps=20, checkpoint_every_steps=10)
    assert checkpoints(project) == ["step-00000010", "step-00000020"]
    train(project, capfd, **HALF_DECAYS, max_steps=9)
    assert checkpoints(project) == ["step-00000006", "step-00000009", "step-00000010", "step-00000020"]
    (said,) = train(project, capfd, **HALF_DECAYS, max_steps=9)
    assert said.startswith("continuing at step 9 of 9, from ")


WSD: dict[str, Any] = {"schedule__name": "wsd", "schedule__decay_share": 0.5}


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


def test_a_run_that_is_made_shorter_has_the_curves_of_an_undisturbed_one(
    inputs: Path, project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rare = {"schedule__name": "constant", "log_every_steps": 4, "evaluate_every_steps": 4}
    train(project, capfd, **rare, max_steps=9, checkpoints_kept=3)
    (said,) = train(project, capfd, **rare, max_steps=6)
    assert said.startswith("continuing at step 3 of 6, from ")
    undisturbed = copy_of(inputs, tmp_path / "undisturbed")
    train(undisturbed, capfd, **rare, max_steps=6)
    assert folder_bytes(project / "reports/curves") == folder_bytes(undisturbed / "reports/curves")


def test_of_a_step_that_was_computed_again_in_a_longer_run_the_new_model_is_shipped(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, checkpoints = copy_of(inputs, tmp_path / "project"), ".parrotflow/checkpoints"
    constant: dict[str, Any] = {"schedule__name": "constant", "export_steps": [5], "checkpoints_kept": 5}
    exported(project, **constant, max_steps=6)
    (lost,) = project.glob(f"{checkpoints}/*/step-00000006")
    lost.rename(project / "lost")  # so the longer run continues at step 3
    monkeypatch.setenv("PARROTFLOW_MICRO_BATCH", "3")  # as other hardware would choose
    shipped = exported(project, **constant, max_steps=9)
    old, new = (weights_sha256(path) for path in sorted(project.glob(f"{checkpoints}/*/exports/*")))
    assert old != new
    assert shipped["step-00000005"] == new
