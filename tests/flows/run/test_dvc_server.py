"""The process that forks DVC for each stage does what DVC does, and no stage outlives its run."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows.run.dvc_server import DvcServer
from flows.run.locks import run_lock
from flows.run.process import StageRequest, StageRunner
from stages.runtime.entry import UserError
from tests.flows.operated import wait_until
from tests.flows.test_pipeline import environment, toy
from tests.flows.toy import make_toy

SLOW = "stages:\n  slow: {cmd: sleep 600, outs: [slow.txt]}\n"
VARIABLES = "stages:\n  one: {cmd: env > out.txt, outs: [out.txt]}\n"


def test_a_stage_that_dvc_does_not_know_fails_with_dvcs_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_toy(tmp_path / "toy"))
    with contextlib.closing(DvcServer()) as server:
        outcome = StageRunner(server).run(StageRequest("no-such-stage"), print)

    assert outcome.result == "failed"
    assert "'no-such-stage' not found" in outcome.message


def test_a_stage_gets_the_variables_of_its_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_toy(tmp_path / "toy", VARIABLES))
    monkeypatch.setenv("GONE", "1")
    with contextlib.closing(DvcServer()) as server:
        StageRunner(server).run(StageRequest("one", environment={"GIVEN": "2", "GONE": None}), print)

    variables = (tmp_path / "toy" / "out.txt").read_text().splitlines()
    assert "GIVEN=2" in variables
    assert not [line for line in variables if line.startswith("GONE=")]


NO_ROOM = """\
import errno, os

def fork():
    raise BlockingIOError(errno.EAGAIN, "no room")

os.fork = fork
"""


def test_a_machine_without_room_for_a_process_is_named_and_not_taken_for_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_ROOM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(make_toy(tmp_path / "toy"))

    with contextlib.closing(DvcServer()) as server, pytest.raises(UserError, match="no process can be started for one"):
        StageRunner(server).run(StageRequest("one"), print)


SAVING = """\
import signal, sys, time
from pathlib import Path

def save(*_):
    Path("saved.txt").write_text("saved")
    sys.exit(75)

signal.signal(signal.SIGTERM, save)
Path("began.txt").touch()
time.sleep(600)
"""


def test_a_stage_ends_with_a_run_that_is_killed_saves_and_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  slow: {cmd: 'setsid sleep 60 & python slow.py', outs: [slow.txt]}\n")
    (folder / "slow.py").write_text(SAVING)
    process = started(folder, tmp_path)
    wait_until((folder / "began.txt").exists, 60)
    children = psutil.Process(process.pid).children(recursive=True)
    daemon = next(child for child in children if child.cmdline()[:1] == ["sleep"])

    process.kill()
    process.wait()

    monkeypatch.chdir(folder)
    with run_lock("next"):
        assert (folder / ".parrotflow/run.lock").read_text().startswith("the run next (process ")
    _, alive = psutil.wait_procs([child for child in children if child != daemon], timeout=60)
    daemon.kill()
    assert alive == []
    assert (folder / "saved.txt").read_text() == "saved"


def test_a_run_that_ends_by_itself_releases_the_lock_whatever_it_left_in_the_background(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: 'sleep 30 & echo $! > one.txt', outs: [one.txt]}\n")
    (tmp_path / "home").mkdir()
    command = [sys.executable, "-m", "flows.cli", "run"]
    first, second = (
        subprocess.run(command, cwd=folder, env=environment(tmp_path / "home"), check=False, capture_output=True)
        for _ in range(2)
    )
    os.kill(int((folder / "one.txt").read_text()), signal.SIGKILL)

    assert (first.returncode, second.returncode) == (0, 0), first.stdout + second.stderr


def started(folder: Path, home: Path) -> "subprocess.Popen[str]":
    """A run whose stage has started."""
    (home / "home").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "run"],
        cwd=folder,
        env=environment(home / "home"),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "started" not in (line := process.stdout.readline()):
        assert line, "the run ended"
    assert f"(process {process.pid}, since " in (folder / ".parrotflow/run.lock").read_text()
    return process
