"""What a run shows of itself while it trains: its trackers, the time left."""

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator
from tensorboardX.proto import event_pb2

from stages.runtime.errors import EXIT_CONTINUE, UserError
from stages.train.monitoring.report import PROJECT, TRACKERS, ProgressLine, seconds_left, start_trackers
from stages.train.params import TrainParams
from tests.train.small_run import monitoring, params, run_workers, stopped_at, write_project


def test_the_time_that_remains_follows_from_the_steps_of_this_start() -> None:
    assert seconds_left(range(1000), 200, 100.0) == pytest.approx(400.0)
    assert seconds_left(range(600, 1000), 700, 200.0) == pytest.approx(600.0)
    assert seconds_left(range(600, 1000), 1000, 800.0) == 0.0


def test_more_than_a_day_that_remains_is_shown_in_hours(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressLine(1000).show(10, 2.5, 1234.0, seconds_left=30 * 3600 + 62)
    assert capsys.readouterr().out == "step 10/1000  loss 2.5000  30:01:02 left  1,234 tokens/s\n"


def test_a_run_that_continues_has_each_step_once_in_tensorboard(tmp_path: Path) -> None:
    """With all that is logged of it. TensorBoard drops earlier points from the step of a later session's start on."""
    project = write_project(tmp_path / "project", trackers=["tensorboard"], checkpoint_every_steps=4, max_steps=8)
    run_workers(project, 1, stopped_at(6), EXIT_CONTINUE)
    newest = max((project / ".parrotflow/checkpoints").glob("*/step-*"))
    newest.rename(newest.with_name("step-00000006.partial"))  # as if killed between steps 4 and 6
    run_workers(project, 1)
    (folder,) = {path.parent for path in (project / ".parrotflow/trackers").glob("*/*/events.out.tfevents.*")}
    steps: list[int] = []
    tags: set[str] = set()
    for path in sorted(folder.glob("events*"), key=lambda path: path.stat().st_mtime_ns):
        for event in read_events(path):
            if event.HasField("session_log"):
                steps = [step for step in steps if step < event.step]
            tags |= {value.tag for value in event.summary.value}
            steps += [event.step for value in event.summary.value if value.tag == "training_loss"]
    assert steps == [1, 2, 3, 4, 5, 6, 7, 8]
    assert tags >= {"training_loss", "learning_rate/muon", "tokens_per_second", "validation_loss"}


def test_a_run_that_starts_again_within_a_second_writes_a_file_of_its_own_and_another_run_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "time", lambda: 1.7e9)
    own, section = monitoring(trackers=["tensorboard"]), TrainParams.model_validate(params())
    for run_name, step in (("run", 0), ("run", 4), ("other", 0)):
        accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=TRACKERS)
        start_trackers(own, section, accelerator, run_name, step)
    folders = [path.parent for path in TRACKERS.glob(f"*/{PROJECT}/events.out.tfevents.*")]
    assert sorted(folder.parent.name for folder in folders) == ["other", "run", "run"]


def read_events(path: Path) -> Iterator[Any]:
    """The events of a file: length (8 bytes), checksum (4), event, checksum (4)."""
    content = path.read_bytes()
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        yield event_pb2.Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]


def test_a_tracker_that_cannot_start_is_named_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TRACKERS.parent.mkdir()
    TRACKERS.write_text("a file stands where its folder should", encoding="utf-8")
    own, section = monitoring(trackers=["tensorboard"]), TrainParams.model_validate(params())
    with pytest.raises(UserError, match=r"monitoring\.trackers = \['tensorboard'\]: could not start: "):
        start_trackers(own, section, Accelerator(cpu=True, log_with="tensorboard", project_dir=TRACKERS), "run", 0)
