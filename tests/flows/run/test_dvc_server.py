"""The process that forks DVC for each stage does what DVC does, hands the lock on, and never outlives its run."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from flows.run import locks as module
from flows.run.dvc_server import DvcServer
from flows.run.locks import run_lock
from flows.run.process import StageRequest, StageRunner
from stages.runtime.entry import UserError
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


def test_a_run_that_is_killed_leaves_no_process_behind_and_the_next_one_waits_for_its_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = toy(tmp_path / "toy", SLOW.replace("sleep 600", "sleep 3"))
    process = started(folder, tmp_path)
    children = psutil.Process(process.pid).children(recursive=True)

    process.kill()
    process.wait()

    assert children
    monkeypatch.chdir(folder)
    with run_lock("next"):
        assert json.loads((folder / ".parrotflow/run.lock").read_text())["name"] == "next"
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


def test_while_a_killed_runs_stage_lives_no_second_run_enters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = toy(tmp_path / "toy", SLOW)
    process = started(folder, tmp_path)
    members = psutil.Process(process.pid).children(recursive=True)
    sleeping = [member for member in members if "sleep" in member.cmdline()[0]]
    while not sleeping:
        time.sleep(0.1)
        members = psutil.Process(process.pid).children(recursive=True)
        sleeping = [member for member in members if member.cmdline() and "sleep" in member.cmdline()[0]]
    for member in [process, *(member for member in members if member not in sleeping)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(member.pid, signal.SIGKILL)
    process.wait()

    monkeypatch.chdir(folder)
    monkeypatch.setattr(module, "ENDING_SECONDS", 1.0)
    expected = rf"the stage of the run .* \(process {process.pid}, .* is using this folder"
    with pytest.raises(UserError, match=expected), run_lock("second"):
        pass
    assert f"(process {process.pid}, " in capsys.readouterr().out

    sleeping[0].kill()
    deadline = time.monotonic() + 60
    while True:
        try:
            with run_lock("third"):
                break
        except UserError:
            assert time.monotonic() < deadline, "the lock is held by a process that does no work"
            time.sleep(0.1)


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
    assert json.loads((folder / ".parrotflow/run.lock").read_text())["pid"] == process.pid
    return process
