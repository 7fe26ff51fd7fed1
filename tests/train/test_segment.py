"""The steps between two checkpoints, computed again: what `python -m stages.train.segment` finds out."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stages.formats.reports import read_json
from stages.formats.revision.execution import TRAIN_EXECUTION, Execution, SegmentReport
from stages.runtime.launch import LaunchConfig
from stages.train import segment, worker
from stages.train.launcher import LAUNCH_SETTINGS, pass_on
from stages.train.params import TrainParams
from tests.small_project import folder_bytes
from tests.train.small_run import copy_of, run_workers, start, write_params, write_project

EQUAL, DIFFERENT, CANNOT = 0, 1, 2

Check = Callable[..., SegmentReport]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps that keeps its checkpoints of the steps 6, 9 and 12, and doubles its batch in between."""
    folder = write_project(tmp_path_factory.mktemp("finished"), checkpoints_kept=3, batch_doublings=[7])
    run_workers(folder, 1)
    return folder


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "project"))


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """The command in a project, with its workers forked from this process instead of launched by accelerate."""

    def launch(config: LaunchConfig, params: TrainParams) -> int:
        given = Path.cwd() / "code"
        given.unlink(missing_ok=True)
        run_workers(Path.cwd(), config.processes, lambda: _leaving_its_code(given), **pass_on(params, config))
        return int(given.read_text(encoding="utf-8"))

    def run_check(folder: Path, first: int, last: int, code: int, *options: str) -> SegmentReport:
        report = tmp_path / "report.json"
        arguments = ["segment", "--from", str(first), "--to", str(last), "--report", str(report), *options]
        with monkeypatch.context() as patched:
            patched.chdir(folder)
            patched.setattr(os, "environ", os.environ.copy())
            patched.setenv("PARROTFLOW_LAUNCH", "cpu")
            patched.setattr(sys, "argv", arguments)
            patched.setattr(segment, "launch", launch)
            with pytest.raises(SystemExit) as ended:
                segment.main()
        assert ended.value.code == code
        return SegmentReport.read(report)

    return run_check


def _leaving_its_code(file: Path) -> None:
    try:
        worker.main()
    except SystemExit as ended:
        file.write_text(str(ended.code), encoding="utf-8")


def change_record(folder: Path, **changes: Any) -> Execution:
    """Write the record with some fields changed."""
    record = Execution.find(folder / TRAIN_EXECUTION)
    assert record is not None
    record = record.model_copy(update=changes)
    record.write(folder / TRAIN_EXECUTION)
    return record


def test_the_segments_of_a_run_lead_to_its_checkpoints_and_weights_and_leave_it_as_it_was(
    project: Path, check: Check
) -> None:
    before = folder_bytes(project)
    report = check(project, 6, 12, EQUAL)
    assert report.verdict == "equal"
    assert [one.what for one in report.compared] == ["checkpoint of step 9", "checkpoint of step 12", "weights"]
    assert all(one.recorded == one.found for one in report.compared)
    assert report.differences == []
    assert folder_bytes(project) == before


def test_a_segment_from_step_0_needs_no_checkpoint(project: Path, check: Check) -> None:
    shutil.rmtree(project / ".parrotflow")
    report = check(project, 0, 3, EQUAL)
    assert [one.what for one in report.compared] == ["checkpoint of step 3"]


def test_a_record_that_is_not_what_was_computed_is_found_out_at_its_first_wrong_step(
    project: Path, check: Check
) -> None:
    record = change_record(project)
    change_record(project, checkpoints=record.checkpoints | {9: "0" * 64})
    report = check(project, 6, 12, DIFFERENT)
    assert report.verdict == "different"
    assert [one.what for one in report.compared] == ["checkpoint of step 9"]
    assert "the first difference is in the checkpoint of step 9" in report.reason


def test_weights_that_the_last_checkpoint_does_not_lead_to_are_found_out(project: Path, check: Check) -> None:
    change_record(project, weights_sha256="0" * 64)
    report = check(project, 9, 12, DIFFERENT)
    assert report.compared[-1].what == "weights"
    assert "the first difference is in the weights. No recorded fact of the execution differs" in report.reason


def test_what_the_recorded_machine_had_and_this_one_lacks_is_named_as_a_likely_cause(
    project: Path, check: Check
) -> None:
    record = change_record(project)
    (session,) = record.sessions
    elsewhere = session.model_copy(
        update={
            "cpu_flags": sorted([*session.cpu_flags, "amx_of_tests"]),
            "versions": session.versions | {"torch": "2.12.0"},
        }
    )
    change_record(project, sessions=[elsewhere], checkpoints=record.checkpoints | {12: "0" * 64})
    report = check(project, 9, 12, DIFFERENT)
    facts = {one.fact: (one.recorded, one.here) for one in report.differences}
    assert facts == {"cpu_flags": ("amx_of_tests", "none"), "versions.torch": ("2.12.0", session.versions["torch"])}
    assert "Likely causes: cpu_flags (amx_of_tests recorded, none here), versions.torch (2.12.0 " in report.reason


def test_a_segment_over_two_sessions_is_computed_as_each_of_them_was(tmp_path: Path, check: Check) -> None:
    project = write_project(tmp_path / "project", schedule__name="constant", max_steps=6, checkpoints_kept=9)
    run_workers(project, 1, PARROTFLOW_MICRO_BATCH="2")
    write_params(project, schedule__name="constant", max_steps=9, checkpoints_kept=9)
    run_workers(project, 1)
    record = Execution.find(project / TRAIN_EXECUTION)
    assert record is not None
    executed = [(one.first_step, one.last_step, one.micro_batch_size) for one in record.sessions]
    assert executed == [(1, 6, 2), (7, 9, 8)]
    report = check(project, 3, 9, EQUAL)
    assert [one.what for one in report.compared] == ["checkpoint of step 6", "checkpoint of step 9", "weights"]


def test_a_setting_other_than_recorded_is_named_as_a_likely_cause(project: Path, check: Check) -> None:
    report = check(project, 9, 12, DIFFERENT, "--set", "PARROTFLOW_MICRO_BATCH=3")
    facts = {one.fact: (one.recorded, one.here) for one in report.differences}
    assert facts == {"micro_batch_size": ("16", "3"), "gradient_accumulation_steps": ("1", "6")}


def test_what_cannot_be_checked_is_said_with_the_steps_that_can(project: Path, check: Check) -> None:
    assert "3, 6, 9, 12" in check(project, 6, 11, CANNOT).reason
    assert "of those that it has 0, 6, 9, 12 are kept" in check(project, 5, 12, CANNOT).reason
    report = check(project, 3, 12, CANNOT)
    assert report.verdict == "cannot"
    assert "0, 6, 9, 12 are (train.milestone_every_steps and train.checkpoints_kept keep more)" in report.reason
    assert "a segment goes from a step to a later one" in check(project, 9, 9, CANNOT).reason
    (project / TRAIN_EXECUTION).unlink()
    assert "holds no record" in check(project, 9, 12, CANNOT).reason


def test_other_parameters_than_the_runs_are_refused_by_name(project: Path, check: Check) -> None:
    write_params(project, checkpoints_kept=3, batch_doublings=[7], seed=1)
    report = check(project, 9, 12, CANNOT)
    assert "the working tree is not that of the recorded run (train.seed: 0 -> 1)" in report.reason


def test_a_checkpoint_that_is_not_the_recorded_one_is_refused(project: Path, check: Check) -> None:
    checkpoint = next(project.glob(".parrotflow/checkpoints/*/step-00000009"))
    record = change_record(project)
    change_record(project, checkpoints=record.checkpoints | {9: "0" * 64})
    assert "it is not the recorded one" in check(project, 9, 12, CANNOT).reason
    change_record(project, checkpoints=record.checkpoints)
    (checkpoint / "__0_0.distcp").write_bytes(b"damaged")
    assert "__0_0.distcp is missing or damaged" in check(project, 9, 12, CANNOT).reason


def test_two_processes_are_launched_again_as_the_record_says(finished: Path, tmp_path: Path) -> None:
    """By accelerate, whatever launch the environment names."""
    project = copy_of(finished, tmp_path / "two")
    run_workers(project, 2, **{LAUNCH_SETTINGS: (project / "launch/cpu_2.yaml").read_text(encoding="utf-8")})
    command = (sys.executable, "-m", "stages.train.segment", "--from", "9", "--to", "12", "--report", "report.json")
    process = start(project, command, PARROTFLOW_LAUNCH="cpu")
    said, _ = process.communicate(timeout=200)
    assert process.returncode == EQUAL, said
    assert "equal: steps 10 to 12, computed again, lead to the recorded state, bit for bit" in said
    assert read_json(project / "report.json")["differences"] == []
    assert Execution.find(project / TRAIN_EXECUTION).sessions[0].processes == 2  # type: ignore[union-attr]
