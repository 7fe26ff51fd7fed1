import fcntl
import os
from pathlib import Path

import pytest

from flows.project import doctor
from flows.run.locks import RUN_LOCK
from stages.formats.model_folder import CHECKPOINTS
from stages.formats.revision.execution import TRAIN_EXECUTION, Execution
from stages.runtime.errors import UserError

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_projects_own_environment_has_no_fault() -> None:
    faults = [finding for finding in doctor.examine_machine() if finding.level == "fault"]

    assert faults == []


def test_every_fault_and_note_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")

    findings = list(doctor.examine_machine())

    assert {finding.what for finding in findings if finding.level == "fault"} >= {"git", "variables"}
    assert all(finding.remedy for finding in findings if finding.level != "ok")


def test_a_repository_that_git_refuses_to_read_is_named_in_gits_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")

    found = doctor.git_finding()

    assert "dubious ownership" in found.found
    assert "safe.directory" in found.remedy


def test_another_version_than_the_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "requirements.lock").write_text("numpy==0.0.1\nno-such-library==1.0\n")
    monkeypatch.chdir(tmp_path)

    found = doctor.packages().found

    assert "instead of 0.0.1" in found
    assert "no-such-library missing instead of 1.0" in found


def test_a_variable_that_is_set_is_shown_and_a_misspelled_one_with_the_right_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PARROTFLOW_WORKERS", "2")
    assert "PARROTFLOW_WORKERS" in doctor.variables().found

    monkeypatch.setenv("PARROTFLOW_WORKER", "2")

    finding = doctor.variables()
    said = "PARROTFLOW_WORKER is not a variable that parrotflow reads; did you mean `PARROTFLOW_WORKERS`?"
    assert (finding.level, finding.found) == ("note", said)


def test_only_checkpoints_that_no_current_run_can_use_are_deleted_and_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for age, run in enumerate(("newest", "started", "earlier", "finished")):
        step = CHECKPOINTS / run / "step-00000003"
        step.mkdir(parents=True)
        (step / "state.distcp").write_bytes(bytes(1000))
        os.utime(step.parent, (1e9 - age, 1e9 - age))
    Path("params.yaml").write_text(f"train: {{start_from: {CHECKPOINTS}/started/step-00000003}}\n")
    execution = Execution(fingerprint="finished", sessions=[], checkpoints={}, weights_sha256="")
    (tmp_path / TRAIN_EXECUTION).parent.mkdir()
    execution.write(Path(TRAIN_EXECUTION))

    assert ".parrotflow 0.0 GB" in doctor.disk().found
    assert len(list(CHECKPOINTS.iterdir())) == 4
    assert doctor.freed().found == "deleted those of 1 earlier runs (0.0 GB)"
    assert {path.name for path in CHECKPOINTS.iterdir()} == {"newest", "started", "finished"}


def test_the_cache_is_not_read_while_a_run_writes_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    RUN_LOCK.parent.mkdir()
    with RUN_LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        with pytest.raises(UserError, match="is using this folder"):
            doctor.doctor(cache=True)
