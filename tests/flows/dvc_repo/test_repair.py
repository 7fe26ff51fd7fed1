"""A kill at the wrong instant leaves DVC's table of locks cut off; DVC itself then refuses every command."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from flows.dvc_repo.internals import DVC_TMP, is_valid_lock_file
from flows.dvc_repo.repair import LockFileWatch, forget_zombies, is_torn, remove_torn_table
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


CUTTING = """\
stages:
  one: {cmd: echo 1 > one.txt, outs: [one.txt]}
  two: {cmd: cat one.txt > two.txt, deps: [one.txt], outs: [two.txt]}
  cut:
    cmd: test -f cut.txt && sh -c "$(cat do.sh)"; cat do.sh > cut.txt
    deps: [do.sh]
    outs: [{cut.txt: {persist: true}}]
  after: {cmd: cat cut.txt > after.txt, deps: [cut.txt], outs: [after.txt]}
"""


@pytest.mark.parametrize("kept", ["0 bytes", "a third", "half", "no YAML"])
def test_a_lock_file_that_is_cut_off_while_a_stage_runs_is_mended_by_the_run(tmp_path: Path, kept: str) -> None:
    project = toy(tmp_path / "toy", CUTTING)
    lock_file = project / "dvc.lock"
    (project / "do.sh").write_text("true")
    assert run(project).returncode == 0
    before = lock_file.read_text()
    size = {"0 bytes": 0, "a third": len(before) // 3, "half": len(before) // 2, "no YAML": before.index("md5:") + 2}
    (project / "do.sh").write_text(f"truncate -s {size[kept]} dvc.lock")

    done = run(project)

    assert done.returncode == 0, done.stdout
    after = yaml.safe_load(lock_file.read_text())["stages"]
    assert list(after) == ["one", "two", "cut", "after"]
    assert after["two"] == yaml.safe_load(before)["stages"]["two"]
    assert "Data and pipelines are up to date" in repro(project)


ENTRY = "  {0}:\n    cmd: cp in.txt {0}.txt\n    outs:\n    - path: {0}.txt\n      hash: md5\n      md5: {1}\n"


def test_a_lock_that_is_cut_off_anywhere_while_stages_run_is_mended_unless_dvc_would_take_it(tmp_path: Path) -> None:
    lock = tmp_path / "dvc.lock"
    old = "schema: '2.0'\nstages:\n" + ENTRY.format("one", "a" * 32) + ENTRY.format("two", "b" * 32)
    new = old.replace("b" * 32, "c" * 32) + ENTRY.format("three", "d" * 32)
    for text in (new, new + ENTRY.format("one", "e" * 32), new + "datasets: []\n"):
        for end in range(len(text) + 1):
            watch = LockFileWatch()
            lock.write_text(old)
            assert not watch.look(lock)
            lock.write_text(text[:end])

            assert watch.look(lock) == (not is_valid_lock_file(text[:end])), text[:end]
            assert is_valid_lock_file(lock.read_text())
