"""The steps between two checkpoints, computed again: what `python -m stages.train.segment` finds out."""

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.formats.revision.execution import TRAIN_EXECUTION, Execution
from stages.runtime.errors import EXIT_CONTINUE, UserError
from stages.runtime.launch import LaunchConfig
from stages.train import segment, worker
from stages.train.launcher import LAUNCH_SETTINGS, recorded_launch
from stages.train.params import TrainParams
from tests.small_project import ROOT, folder_bytes
from tests.train.small_run import copy_of, run_workers, start, stopped_at, write_params, write_project

EQUAL, DIFFERENT, CANNOT = 0, 3, 2

Check = Callable[..., str]
"""(project, first step, last step, expected exit code) -> what the command prints."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps that keeps its checkpoints of the steps 6, 9 and 12."""
    folder = write_project(tmp_path_factory.mktemp("finished"), checkpoints_kept=3)
    run_workers(folder, 1)
    return folder


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "project"))


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Check:
    """The command in a project, with its workers forked from this process instead of launched by accelerate."""

    def launch(config: LaunchConfig, _: TrainParams) -> int:
        given = Path.cwd() / "code"
        given.unlink(missing_ok=True)
        run_workers(Path.cwd(), config.processes, lambda: _leaving_its_code(given), **recorded_launch(config))
        return int(given.read_text(encoding="utf-8"))

    def run_check(folder: Path, first: int, last: int, code: int) -> str:
        capfd.readouterr()
        with monkeypatch.context() as patched:
            patched.chdir(folder)
            patched.setattr(os, "environ", os.environ.copy())
            patched.setenv("PARROTFLOW_LAUNCH", "cpu")
            patched.setattr(sys, "argv", ["segment", "--from", str(first), "--to", str(last)])
            patched.setattr(segment, "launch", launch)
            with pytest.raises((SystemExit, UserError)) as ended:
                segment.main()
        said = "".join(capfd.readouterr())
        if isinstance(ended.value, UserError):
            assert ended.value.exit_code == code
            return str(ended.value)
        assert ended.value.code == code, said
        return said

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


def compared(said: str) -> list[str]:
    """What was compared, in order."""
    return re.findall(r"^(checkpoint of step \d+|weights): \w{16} recorded, ", said, re.MULTILINE)


def test_a_segment_of_a_run_leads_to_its_checkpoints_and_weights_and_leaves_the_run_as_it_was(
    project: Path, check: Check
) -> None:
    before = folder_bytes(project)

    said = check(project, 6, 12, EQUAL)

    assert compared(said) == ["checkpoint of step 9", "checkpoint of step 12", "weights"]
    assert "equal: steps 7 to 12, computed again, lead to the recorded state, bit for bit (" in said
    after = folder_bytes(project)
    assert {path: after[path] for path in after if not path.startswith(".parrotflow/cache/")} == before


def test_a_segment_from_step_0_needs_no_checkpoint(project: Path, check: Check) -> None:
    shutil.rmtree(project / ".parrotflow")

    assert compared(check(project, 0, 3, EQUAL)) == ["checkpoint of step 3"]


def test_a_false_record_is_found_at_its_first_wrong_step(project: Path, check: Check) -> None:
    record = change_record(project)
    change_record(project, checkpoints=record.checkpoints | {9: "0" * 64})

    said = check(project, 6, 12, DIFFERENT)

    assert compared(said) == ["checkpoint of step 9"]
    assert f"checkpoint of step 9: {'0' * 16} recorded, different: {record.checkpoints[9][:16]} here\n" in said
    assert "no recorded fact of the execution differs: " in said
    assert "different: steps 7 to 12, computed again, do not lead to the recorded state (" in said


def test_weights_that_differ_are_found_and_the_facts_that_differ_listed(project: Path, check: Check) -> None:
    record = change_record(project)
    (session,) = record.sessions
    versions = session.versions | {"torch": "2.12.0"}
    elsewhere = session.model_copy(
        update={"cpu_flags": sorted([*session.cpu_flags, "amx_of_tests"]), "versions": versions}
    )
    change_record(project, sessions=[elsewhere], weights_sha256="0" * 64)

    said = check(project, 9, 12, DIFFERENT)

    assert compared(said)[-1] == "weights"
    assert re.findall("^execution: (.*)", said, re.MULTILINE) == [
        "cpu_flags: recorded amx_of_tests, here none",
        f"versions.torch: recorded 2.12.0, here {session.versions['torch']}",
    ]


def test_a_segment_lies_within_a_session_and_is_computed_as_that_was(tmp_path: Path, check: Check) -> None:
    project = write_project(tmp_path / "project", max_steps=9, checkpoints_kept=9)
    run_workers(project, 1, stopped_at(6), EXIT_CONTINUE, PARROTFLOW_MICRO_BATCH="2")
    run_workers(project, 1)
    record = change_record(project)
    executed = [(one.first_step, one.last_step, one.micro_batch_size) for one in record.sessions]
    assert executed == [(1, 6, 2), (7, 9, 8)]

    assert compared(check(project, 3, 6, EQUAL)) == ["checkpoint of step 6"]
    said = check(project, 3, 9, CANNOT)

    assert "--from 3 --to 9: no single session executed these steps; the run was executed as 0-6, 6-9: " in said


def test_a_segment_that_cannot_be_checked_is_refused_with_the_steps_that_can(project: Path, check: Check) -> None:
    assert "3, 6, 9, 12" in check(project, 6, 11, CANNOT)
    assert "choose from: 0, 6, 9, 12" in check(project, 5, 12, CANNOT)
    pruned = check(project, 3, 12, CANNOT)
    assert (
        "choose from: 0, 6, 9, 12 (monitoring.milestone_every_steps and monitoring.checkpoints_kept keep more)"
        in pruned
    )
    assert "--from must be at least 0, and --to later" in check(project, 9, 9, CANNOT)
    (project / TRAIN_EXECUTION).unlink()
    assert "holds no record" in check(project, 9, 12, CANNOT)


def test_other_parameters_than_the_runs_are_refused_by_name(project: Path, check: Check) -> None:
    write_params(project, checkpoints_kept=3, seed=1)

    said = check(project, 9, 12, CANNOT)

    assert "the working tree is not that of the recorded run (train.seed: 0 -> 1)" in said


def test_a_checkpoint_that_is_not_the_recorded_one_is_refused(project: Path, check: Check) -> None:
    checkpoint = next(project.glob(".parrotflow/checkpoints/*/step-00000009"))
    record = change_record(project)
    change_record(project, checkpoints=record.checkpoints | {9: "0" * 64})
    assert "it is not the recorded one" in check(project, 9, 12, CANNOT)
    change_record(project, checkpoints=record.checkpoints)
    (checkpoint / "__0_0.distcp").write_bytes(b"damaged")
    assert "__0_0.distcp is missing or damaged" in check(project, 9, 12, CANNOT)


def test_two_processes_are_launched_again_as_the_record_says(finished: Path, tmp_path: Path) -> None:
    """By accelerate, whatever launch the environment names."""
    project = copy_of(finished, tmp_path / "two")
    run_workers(project, 2, **{LAUNCH_SETTINGS: (project / "deploy/launch/cpu_2.yaml").read_text(encoding="utf-8")})
    command = (sys.executable, "-m", "stages.train.segment", "--from", "9", "--to", "12")
    process = start(project, command, PARROTFLOW_LAUNCH="cpu")
    said, _ = process.communicate()
    assert process.returncode == EQUAL, said
    assert "equal: steps 10 to 12, computed again, lead to the recorded state, bit for bit" in said
    assert change_record(project).sessions[0].processes == 2


def test_the_segments_that_the_documentation_names_are_there_after_the_default_job(
    finished: Path, tmp_path: Path
) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
    named = re.findall(r"(?:--segment |segment --from )(\d+)(?:-| --to )(\d+)", pages)
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    train, every = values["train"], values["monitoring"]["checkpoint_every_steps"]
    steps = [*range(every, train["max_steps"], every)]
    steps.append(train["max_steps"])
    session = change_record(finished).sessions[0].model_copy(update={"last_step": train["max_steps"]})
    recorded = change_record(finished).model_copy(
        update={"checkpoints": dict.fromkeys(steps, ""), "sessions": [session]}
    )
    recorded.write(tmp_path / "execution.json")
    for step in steps[-values["monitoring"]["checkpoints_kept"] :]:
        (tmp_path / f"step-{step:08d}").mkdir()

    assert len(named) >= 3
    for first, last in named:
        segment.plan(tmp_path / "execution.json", tmp_path, int(first), int(last))
