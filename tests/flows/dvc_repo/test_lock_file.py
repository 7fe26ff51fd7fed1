"""What a kill leaves torn is repaired by the next run; what is damaged otherwise is named with the remedy."""

import subprocess
import threading
from pathlib import Path

import pytest
from dvc.lock import make_lock

from flows.dvc_repo.lock_file import DVC_TMP, LOCK_FILE, is_torn, repair_after_kill
from flows.project import doctor
from tests.flows.test_pipeline import run, toy
from tests.flows.toy import make_toy, repro

ONE = "stages:\n  one: {cmd: cp source.txt one.txt, deps: [source.txt], outs: [one.txt]}\n"


def test_an_empty_lock_costs_nothing(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", ONE)
    assert run(folder).returncode == 0
    whole = (folder / LOCK_FILE).read_bytes()
    (folder / LOCK_FILE).write_bytes(b"")

    done = run(folder)

    assert done.returncode == 0, done.stdout
    assert "restored" in done.stdout
    assert (folder / LOCK_FILE).read_bytes() == whole


def test_a_lock_that_plain_dvc_is_just_writing_stays(tmp_path: Path) -> None:
    folder = make_toy(tmp_path / "toy")
    repro(folder)
    lock, tmp = folder / LOCK_FILE, str(folder / DVC_TMP)
    text = lock.read_text()
    with make_lock(f"{tmp}/lock", tmp_dir=tmp, wait=True):
        lock.write_text("")  # as DVC opens it
        repair = threading.Thread(target=repair_after_kill, args=[folder])
        repair.start()
        repair.join(1)
        assert lock.exists()
        lock.write_text(text)
    repair.join()

    assert lock.read_text() == text


@pytest.mark.parametrize("text", ["stages: [", "schema: '2.0'\nstages:\n  one:\n    cm"])
def test_a_lock_that_is_no_yaml_is_named_with_the_remedy(tmp_path: Path, text: str) -> None:
    folder = toy(tmp_path / "toy", ONE)
    (folder / LOCK_FILE).write_text(text)

    done = run(folder)

    assert done.returncode == 2
    assert "; `git checkout dvc.lock` brings" in done.stderr
    assert "Traceback" not in done.stderr


def torn(folder: Path) -> Path:
    project = toy(folder, ONE)
    (project / DVC_TMP / "rwlock").write_text('{"write": {"/a"')
    return project


def test_a_torn_table_is_removed_with_a_word_and_dvc_works_again(tmp_path: Path) -> None:
    project = torn(tmp_path / "toy")
    with pytest.raises(subprocess.CalledProcessError):
        repro(project)

    done = run(project)

    assert done.returncode == 0, done.stdout
    assert "nothing is lost" in done.stdout
    assert "up to date" in repro(project)


def test_the_doctor_names_a_torn_table_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(torn(tmp_path / "toy"))

    found = doctor.dvc()

    assert found.level == "fault"
    assert "rm .dvc/tmp/rwlock" in found.remedy


def test_a_whole_table_stays(tmp_path: Path) -> None:
    table = toy(tmp_path / "toy", ONE) / DVC_TMP / "rwlock"
    table.write_text("{}")

    assert not is_torn(table)
    assert repair_after_kill(tmp_path / "toy") == []
    assert table.exists()
