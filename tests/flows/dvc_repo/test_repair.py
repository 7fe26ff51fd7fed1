"""A kill at the wrong instant leaves DVC's table of locks cut off; DVC itself then refuses every command."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from flows.dvc_repo.internals import DVC_TMP
from flows.dvc_repo.lock_file import forget_zombies, is_torn, remove_torn_table
from flows.project import doctor
from tests.flows.test_pipeline import run, toy
from tests.flows.toy import repro

ONE = "stages:\n  one: {cmd: echo 1 > one.txt, outs: [one.txt]}\n"


def torn(folder: Path) -> Path:
    project = toy(folder, ONE)
    (project / DVC_TMP / "rwlock").write_text('{"write": {"/a"')
    return project


def test_a_run_mends_it_says_so_and_dvc_goes_on(tmp_path: Path) -> None:
    project = torn(tmp_path / "toy")
    with pytest.raises(subprocess.CalledProcessError):
        repro(project)

    done = run(project)

    assert done.returncode == 0, done.stdout
    assert "nothing is lost" in done.stdout
    assert "up to date" in repro(project)


def test_the_doctor_names_it_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(torn(tmp_path / "toy"))

    found = doctor.dvc()

    assert found.level == "fault"
    assert "rm .dvc/tmp/rwlock" in found.remedy


def test_a_whole_table_stays(tmp_path: Path) -> None:
    project = toy(tmp_path / "toy", ONE)
    (project / DVC_TMP / "rwlock").write_text("{}")

    assert not is_torn(project)
    assert not remove_torn_table(project)
    assert (project / DVC_TMP / "rwlock").exists()


def test_a_process_that_ended_and_was_not_asked_about_blocks_no_run(tmp_path: Path) -> None:
    project = toy(tmp_path / "toy", ONE)
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    held = {"pid": zombie.pid, "cmd": "dvc repro"}
    table = {"read": {str(project / "dvc.yaml"): [held]}, "write": {str(project / "one.txt"): held}}
    (project / DVC_TMP / "rwlock").write_text(json.dumps(table))
    with pytest.raises(subprocess.CalledProcessError):
        repro(project)

    done = run(project)

    zombie.wait()
    assert done.returncode == 0, done.stdout
    assert (project / "one.txt").read_text() == "1\n"


def test_what_a_living_process_holds_stays(tmp_path: Path) -> None:
    project = toy(tmp_path / "toy", ONE)
    held = {"pid": os.getpid(), "cmd": "dvc repro"}
    table = {"read": {"/a": [held]}, "write": {"/b": held}}
    (project / DVC_TMP / "rwlock").write_text(json.dumps(table))

    forget_zombies(project)

    assert json.loads((project / DVC_TMP / "rwlock").read_text()) == table
