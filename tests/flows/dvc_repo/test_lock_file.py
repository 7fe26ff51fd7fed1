import json
import os
import shutil
import signal
import subprocess
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn, TextIO

import psutil
import pytest
import yaml
from dvc.utils.serialize import _yaml, modify_yaml

from flows.dvc_repo.internals import lock_file_written_whole
from flows.dvc_repo.lock_file import (
    DVC_TMP,
    LOCK_FILE,
    blocks_of,
    forget_dead,
    guard,
    is_torn,
    keep_order,
    located,
    read_orders,
    remove_torn_table,
    repair_after_kill,
)
from flows.project import doctor
from tests.flows.test_pipeline import run, toy
from tests.flows.toy import make_toy, repro

WAIT = "for try in $(seq 900); do [ -e $1 ] && exit; sleep 0.1; done; exit 1"
"""Fails where the file does not appear that a stage makes which `dvc repro` runs later."""

SIDE_BY_SIDE = """\
vars: [{models: {b: 2, a: 1}}]
stages:
  slow: {cmd: sh wait.sh last && cat one.txt > slow.txt, deps: [one.txt], outs: [slow.txt]}
  cell:
    matrix: {x: [2, 1]}
    cmd: echo ${item.x} > cell${item.x}.txt
    outs: ["cell${item.x}.txt"]
  each:
    foreach: ${models}
    do: {cmd: "echo ${item} > each${key}.txt", outs: ["each${key}.txt"]}
  join:
    cmd: cat slow.txt cell1.txt more/more.txt > join.txt
    deps: [slow.txt, cell1.txt, more/more.txt]
    outs: [join.txt]
  also: {cmd: cat cell2.txt > also.txt && touch last, deps: [cell2.txt], outs: [also.txt]}
"""

MORE = """\
stages:
  z: {cmd: echo z > z.txt, outs: [z.txt]}
  more: {cmd: cat z.txt > more.txt, deps: [z.txt], outs: [more.txt]}
"""


def twins(tmp_path: Path) -> tuple[Path, Path]:
    """Two projects with the same pipeline: one for `dvc repro`, in which no stage waits, one for `parrotflow run`."""
    plain, ours = toy(tmp_path / "plain", SIDE_BY_SIDE), toy(tmp_path / "ours", SIDE_BY_SIDE)
    for folder in (plain, ours):
        (folder / "more").mkdir()
        (folder / "more/dvc.yaml").write_text(MORE)
        (folder / "wait.sh").write_text(WAIT)
        (folder / "one.txt").write_text("1\n")
    (plain / "wait.sh").write_text("true\n")
    return plain, ours


def locks(folder: Path) -> list[bytes]:
    return [(folder / path).read_bytes() for path in (LOCK_FILE, f"more/{LOCK_FILE}")]


def stages_in(folder: Path) -> list[str]:
    return list(yaml.safe_load((folder / LOCK_FILE).read_text())["stages"])


def test_stages_side_by_side_leave_the_lock_files_of_dvc_repro(tmp_path: Path) -> None:
    plain, ours = twins(tmp_path)

    repro(plain)
    done = run(ours)

    assert done.returncode == 0, done.stdout + done.stderr
    assert locks(ours) == locks(plain)
    assert stages_in(ours)[0] == "slow"


@pytest.mark.parametrize("first", [("join",), ("each@a", "cell@2"), ("each@b",), ("more/dvc.yaml:more",)])
def test_entries_that_are_there_keep_their_order_and_new_ones_follow(tmp_path: Path, first: tuple[str, ...]) -> None:
    plain, ours = twins(tmp_path)
    (ours / "last").touch()
    for folder in (plain, ours):
        for target in first:  # DVC takes several in the order of a set
            repro(folder, target)
    (ours / "last").unlink()

    repro(plain)
    done = run(ours)

    assert done.returncode == 0, done.stdout + done.stderr
    assert locks(ours) == locks(plain)


def test_a_lock_in_another_order_stays_so_when_its_stages_run_again(tmp_path: Path) -> None:
    plain, ours = twins(tmp_path)
    (ours / "last").touch()
    for folder in (plain, ours):
        repro(folder)
        head, blocks, _ = blocks_of((folder / LOCK_FILE).read_text())
        (folder / LOCK_FILE).write_text(head + "".join(reversed(blocks.values())))
        (folder / "one.txt").write_text("2\n")
    assert stages_in(ours)[0] != "slow"

    repro(plain)
    assert run(ours).returncode == 0

    assert locks(ours) == locks(plain)


def test_after_a_failure_the_next_run_leaves_the_lock_file_of_dvc_repro(tmp_path: Path) -> None:
    plain, ours = twins(tmp_path)
    (ours / "wait.sh").write_text(WAIT.replace("&& exit", "&& exit 1"))
    assert run(ours).returncode == 1
    assert "also" in stages_in(ours)
    (ours / "wait.sh").write_text(WAIT)

    repro(plain)
    assert run(ours).returncode == 0

    assert locks(ours) == locks(plain)


def test_entries_of_a_failed_run_in_a_lock_that_was_replaced_since_stay_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = {name: f"  {name}:\n    cmd: x\n" for name in "abcd"}

    def entered(names: str, *, then: str) -> int:
        keep_order(tuple("abcd"))
        Path(LOCK_FILE).write_text("schema: '2.0'\nstages:\n" + "".join(blocks[name] for name in names))
        keep_order(tuple("abcd"))
        return read_orders()[LOCK_FILE].position(then, names)

    assert entered("cd", then="a") == 0
    Path(LOCK_FILE).unlink()
    assert entered("dc", then="a") == 2


def test_a_stage_is_found_in_its_own_dvc_yaml() -> None:
    assert located("copy") == (Path("dvc.yaml"), "copy")
    assert located("more/dvc.yaml:copy@1") == (Path("more/dvc.yaml"), "copy@1")


def test_a_stage_with_a_long_name_is_found_in_a_lock_file(tmp_path: Path) -> None:
    long = "cell" * 40
    names = {long: "one.txt", "two": "two.txt"}
    stages = (f"  {name}: {{cmd: echo 1 > {out}, outs: [{out}]}}\n" for name, out in names.items())
    folder = make_toy(tmp_path / "toy", f"stages:\n{''.join(stages)}")
    repro(folder)
    text = (folder / LOCK_FILE).read_text()
    assert f"  ? {long}\n  : cmd: " in text

    assert list(blocks_of(text)[1]) == [long, "two"]


def test_a_kill_while_dvc_writes_its_lock_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_toy(tmp_path / "toy")
    repro(folder)
    monkeypatch.chdir(folder)
    before = Path(LOCK_FILE).read_bytes()

    for within, after in ((lock_file_written_whole(), before), (nullcontext(), b"stages:\n")):
        with within:
            child = os.fork()
            if child == 0:
                _yaml._dump = die_in_the_middle
                with modify_yaml(LOCK_FILE):
                    pass
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert Path(LOCK_FILE).read_bytes() == after


def die_in_the_middle(content: object, stream: TextIO) -> NoReturn:
    stream.write("stages:\n")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_a_lock_that_a_kill_of_plain_dvc_has_emptied_costs_nothing(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: echo 1 > one.txt, deps: [in.txt], outs: [one.txt]}\n")
    (folder / "in.txt").write_text("1\n")
    assert run(folder).returncode == 0
    whole = (folder / LOCK_FILE).read_bytes()
    (folder / LOCK_FILE).write_bytes(b"")

    done = run(folder)

    assert done.returncode == 0, done.stdout
    assert "restored" in done.stdout
    assert (folder / LOCK_FILE).read_bytes() == whole


@pytest.mark.parametrize("with_git", [True, False])
def test_so_does_one_in_a_folder_and_what_git_ignores_is_let_alone(tmp_path: Path, with_git: bool) -> None:
    folder = make_toy(tmp_path / "toy")
    (folder / ".gitignore").write_text("/data/\n")
    if not with_git:
        shutil.rmtree(folder / ".git")
    deep = Path("more/still/more") if with_git else Path("more")
    for place in (deep, Path("data/clone")):
        (folder / place).mkdir(parents=True)
        (folder / place / LOCK_FILE).touch()

    (said,) = repair_after_kill(folder)

    assert said.startswith(f"{folder / deep / LOCK_FILE} was emptied by a kill: removed")
    assert not (folder / deep / LOCK_FILE).exists()
    assert (folder / "data/clone" / LOCK_FILE).exists()


def test_a_lock_that_plain_dvc_is_just_writing_stays(tmp_path: Path) -> None:
    folder = make_toy(tmp_path / "toy")
    repro(folder)
    lock = folder / "dvc.lock"
    text = lock.read_text()
    with guard(folder, "lock"):
        lock.write_text("")  # as DVC opens it
        repair = threading.Thread(target=repair_after_kill, args=[folder])
        repair.start()
        repair.join(1)
        assert lock.exists()
        lock.write_text(text)
    repair.join()

    assert lock.read_text() == text


@pytest.mark.parametrize("text", ["stages: [", "schema: '2.0'\nstages:\n  one:\n    cm"])
@pytest.mark.parametrize("place", ["dvc.lock", "more/dvc.lock"])
def test_a_lock_that_is_no_yaml_is_named_with_the_remedy(tmp_path: Path, place: str, text: str) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: echo 1 > one.txt, outs: [one.txt]}\n")
    (folder / "more").mkdir()
    (folder / "more/dvc.yaml").write_text(MORE)
    (folder / place).write_text(text)

    done = run(folder)

    assert done.returncode == 2
    assert f"; `git checkout {place}` brings" in done.stderr
    assert "Traceback" not in done.stderr


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


def test_a_process_that_was_given_the_number_of_one_that_died_blocks_no_run(tmp_path: Path) -> None:
    project = toy(tmp_path / "toy", ONE)
    held = {"pid": os.getpid(), "cmd": "dvc repro"}
    (project / DVC_TMP / "rwlock").write_text(json.dumps({"write": {str(project / "one.txt"): held}}))
    with pytest.raises(subprocess.CalledProcessError):
        repro(project)
    before_this_process = psutil.Process().create_time() - 60
    os.utime(project / DVC_TMP / "rwlock", (before_this_process, before_this_process))

    done = run(project)

    assert done.returncode == 0, done.stdout
    assert (project / "one.txt").read_text() == "1\n"


def test_what_a_living_process_holds_stays(tmp_path: Path) -> None:
    project = toy(tmp_path / "toy", ONE)
    held = {"pid": os.getpid(), "cmd": "dvc repro"}
    table = {"read": {"/a": [held]}, "write": {"/b": held}}
    (project / DVC_TMP / "rwlock").write_text(json.dumps(table))

    forget_dead(project)

    assert json.loads((project / DVC_TMP / "rwlock").read_text()) == table
