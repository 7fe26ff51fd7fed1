"""A run can be followed by trackers; one whose package is missing is refused before anything runs."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from stages.runtime.entry import EXIT_USER_ERROR, UserError
from stages.train.monitoring.trackers import PROJECT, check_trackers
from stages.train.params import TrainParams
from tests.train.small_run import params, run, run_workers, write_project

PACKAGES = {
    "wandb": ["wandb"],
    "tensorboard": ["tensorboard", "tensorboardX"],
    "trackio": ["trackio"],
    "mlflow": ["mlflow"],
}
MISSING = [name for name, packages in PACKAGES.items() if not any(map(find_spec, packages))]


@pytest.mark.parametrize("name", MISSING)
def test_a_tracker_whose_package_is_missing_is_named(name: str) -> None:
    with pytest.raises(UserError) as caught:
        check_trackers(TrainParams.model_validate(params(trackers=[name])))
    assert str(caught.value) == (
        f"params.yaml: train.trackers: `{name}` is not installed; `pip install {name}`, or take it off the list"
    )


@pytest.mark.skipif(not MISSING, reason="every tracker is installed here")
def test_a_missing_tracker_ends_the_command_before_the_first_step_with_one_line(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", trackers=MISSING[:1])
    said = run(project, expected_code=EXIT_USER_ERROR)
    assert said.startswith(f"error: params.yaml: train.trackers: `{MISSING[0]}` is not installed")
    assert said.count("\n") == 1
    assert not (project / ".parrotflow").exists()


def test_tensorboard_gets_every_logged_step_in_event_files(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", trackers=["tensorboard"], max_steps=4)
    run_workers(project, 1)
    (events,) = (project / ".parrotflow/trackers" / PROJECT).glob("events.out.tfevents.*")
    content = events.read_bytes()
    for name in (b"training_loss", b"learning_rate", b"tokens_per_second", b"validation_loss"):
        assert content.count(name) >= (1 if name == b"validation_loss" else 4)


def test_a_tracker_that_cannot_start_is_named_with_its_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    project = write_project(tmp_path / "project", trackers=["tensorboard"])
    (project / ".parrotflow/trackers").mkdir(parents=True)
    (project / ".parrotflow/trackers" / PROJECT).write_text("a file stands where its folder should", encoding="utf-8")
    with pytest.raises(AssertionError):
        run_workers(project, 1)
    said = capfd.readouterr().err.splitlines()[-1]
    assert "UserError: params.yaml: train.trackers = ['tensorboard']: could not start: " in said
