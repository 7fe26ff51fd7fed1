"""A `dvc repro` as a process: its end, its lines, what is left of it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import psutil
import pytest

from flows.run import dvc_process
from flows.run.dvc_child import SINGLE
from flows.run.dvc_process import CHUNK_BYTES, LineSplitter, run_in_group, run_repro
from flows.run.locks import run_lock
from flows.run.outcome import KILLED, StageOutcome
from stages.runtime.errors import UserError
from tests.flows.test_pipeline import COMMAND, environment, toy
from tests.flows.toy import dvc, make_toy
from tests.small_project import PARROTFLOW, run_module
from tests.waiting import wait_until, wait_until_ended


def run(stage: str, variables: Mapping[str, str] = os.environ) -> tuple[StageOutcome, list[str]]:
    lines: list[str] = []
    return asyncio.run(run_repro(stage, [stage], Path(), variables, lines.extend, options=[SINGLE])), lines


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[StageOutcome, list[str]]]:
    """Runs a stage `one`, whose command is a script of the shell."""
    folder = make_toy(tmp_path / "toy", "stages:\n  one: {cmd: sh script.sh, outs: [out.txt]}\n")
    monkeypatch.chdir(folder)

    def run_script(text: str) -> tuple[StageOutcome, list[str]]:
        (folder / "script.sh").write_text(text)
        return run("one")

    return run_script


Script = Callable[[str], tuple[StageOutcome, list[str]]]


def test_a_stage_runs_once_is_then_unchanged_and_restored_where_its_result_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_toy(tmp_path / "toy")
    monkeypatch.chdir(folder)

    assert run("first")[0].result == "ran"
    assert run("first")[0].result == "unchanged"
    (folder / "first.txt").unlink()
    (folder / "dvc.lock").unlink()
    assert run("first")[0].result == "restored"


def test_edited_data_is_recorded_and_not_restored(tmp_path: Path) -> None:
    folder = make_toy(tmp_path / "toy")
    dvc(folder, "add", "-q", "source.txt")
    (folder / "source.txt").write_text("edited\n")

    done = run_module(PARROTFLOW, ["run", "source.txt.dvc"], folder)

    rows = [line.split()[:2] for line in done.stdout.splitlines()]
    assert ["source.txt.dvc", "recorded"] in rows, done.stdout + done.stderr
    assert (folder / "source.txt").read_text() == "edited\n"


@pytest.mark.parametrize(
    ("text", "exit_code", "message"),
    [
        ("printf 'error: the Hub refused:\\nno such repository\\n'; exit 7", 7, "the Hub refused:\nno such repository"),
        ("echo 'worker 3 exited with 69'; exit 4", 4, "worker 3 exited with 69"),
        ("echo done", 255, "failed to reproduce 'one': output 'out.txt' does not exist"),
    ],
)
def test_a_failure_has_the_commands_exit_code_and_its_last_words_else_dvcs(
    script: Script, text: str, exit_code: int, message: str
) -> None:
    outcome, _ = script(text)

    assert (outcome.result, outcome.exit_code, outcome.message) == ("failed", exit_code, message)


def test_a_stage_that_was_killed_says_so(script: Script) -> None:
    outcome, _ = script("kill -9 $$")

    assert outcome.result == "failed"
    assert outcome.message == "was killed (SIGKILL) from outside; run the same command to continue"
    assert outcome.exit_code in KILLED  # the signal, or what a shell between says of it


def test_lines_of_a_stage_that_look_like_dvcs_are_the_stages(script: Script) -> None:
    said = ["Stage 'one' is cached - skipping run, checking out outputs", "Verifying the checkpoint", "ERROR: not one"]

    outcome, lines = script("".join(f'echo "{line}"\n' for line in said) + "echo 1 > out.txt\n")

    assert outcome.result == "ran"
    assert lines == said


def test_a_command_longer_than_a_pipe_holds_keeps_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC repeats the command in its messages."""
    command = f": {'ä' * 40_000}; exit 75"
    monkeypatch.chdir(make_toy(tmp_path / "toy", f"stages:\n  one: {{cmd: '{command}', outs: [out.txt]}}\n"))

    assert run("one")[0].exit_code == 75


@pytest.mark.parametrize(("end", "result"), [("touch out.txt", "ran"), ("exit 1", "failed")])
def test_what_a_stage_leaves_in_its_process_group_ends_with_it(script: Script, end: str, result: str) -> None:
    outcome, lines = script(f"sleep 600 &\necho $!\n{end}\n")

    assert outcome.result == result
    assert not psutil.pid_exists(int(lines[0])) or psutil.Process(int(lines[0])).status() == psutil.STATUS_ZOMBIE


def test_a_daemon_of_a_stage_does_not_keep_the_run_waiting(script: Script) -> None:
    outcome, lines = script("setsid sleep 600 &\necho $!\ntouch out.txt\n")

    assert outcome.result == "ran"
    os.kill(int(lines[0]), signal.SIGKILL)  # fails unless it still runs


def test_a_cancelled_stage_is_ended_with_everything_that_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: 'sleep 600 & echo $!; sleep 600', outs: [out.txt]}\n")
    monkeypatch.chdir(folder)
    lines: list[str] = []
    started: list[psutil.Process] = []

    async def cancelled() -> StageOutcome:
        repro = run_repro("one", ["one"], Path(), os.environ, lines.extend)
        running = asyncio.create_task(repro)
        while not lines:
            await asyncio.sleep(0.02)
        started.append(psutil.Process(int(lines[0])))
        running.cancel()
        return await running

    assert asyncio.run(cancelled()).result == "stopped"
    wait_until_ended(started)


def test_another_program_runs_in_a_group_too_and_its_lines_and_exit_code_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []
    work = partial(subprocess.call, ["sh", "-c", "echo $WORD; exit 3"], stdin=subprocess.DEVNULL)

    outcome = asyncio.run(run_in_group("work", work, Path(), os.environ | {"WORD": "said"}, lines.extend))

    assert (outcome.result, outcome.exit_code, lines) == ("failed", 3, ["said"])


INTERRUPTED = """\
import asyncio, os, signal, subprocess
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from flows.run.dvc_process import run_in_group, start_fork_server
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
start_fork_server()
os.kill(forkserver._forkserver._forkserver_pid, signal.SIGINT)
work = partial(subprocess.call, ["sh", "-c", "kill -INT $$"])
print(asyncio.run(run_in_group("one", work, Path(), os.environ, print)).exit_code)
"""


def test_ctrl_c_does_not_interrupt_the_start_of_the_fork_server_but_still_reaches_stages(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.stdout.strip(), done.stderr) == (str(-signal.SIGINT), "")


def test_a_stage_that_still_saves_its_state_is_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_toy(tmp_path / "toy", "stages:\n  one: {cmd: bash save.sh, outs: [out.txt]}\n"))
    Path("save.sh").write_text("trap '' TERM\necho begun\nuntil [ -e may-end ]; do sleep 0.05; done\ntouch saved\n")
    looks: list[float] = []

    def just_now(project: Path) -> float:
        looks.append(0.0)
        if len(looks) == 5:
            Path("may-end").touch()
        return 0.0

    monkeypatch.setattr(dvc_process, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(dvc_process, "seconds_since_saving", just_now)
    lines: list[str] = []

    async def cancelled() -> StageOutcome:
        running = asyncio.create_task(run_repro("one", ["one"], Path(), os.environ, lines.extend))
        while not lines:
            await asyncio.sleep(0.02)
        running.cancel()
        return await running

    assert asyncio.run(cancelled()).result == "stopped"
    assert Path("saved").exists()


def test_a_machine_without_room_for_a_process_is_named_and_not_taken_for_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise EOFError("unexpected EOF")  # the fork server ended: `os.fork` failed in it

    monkeypatch.chdir(make_toy(tmp_path / "toy"))
    monkeypatch.setattr("multiprocessing.context.ForkServerProcess.start", no_room)

    with pytest.raises(UserError, match="no process can be started for a stage"):
        run("first")


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
    folder = toy(tmp_path / "toy", "stages:\n  slow: {cmd: 'setsid sleep 600 & python slow.py', outs: [slow.txt]}\n")
    (folder / "slow.py").write_text(SAVING)
    (tmp_path / "home").mkdir()
    process = subprocess.Popen(COMMAND, cwd=folder, env=environment(tmp_path / "home"), stdout=subprocess.DEVNULL)
    wait_until((folder / "began.txt").exists)
    children = psutil.Process(process.pid).children(recursive=True)
    daemon = next(child for child in children if child.cmdline()[:1] == ["sleep"])

    process.kill()
    process.wait()

    monkeypatch.chdir(folder)
    with run_lock("next"):
        assert (folder / ".parrotflow/run.lock").read_text().startswith("the run next (process ")
    wait_until_ended(child for child in children if child != daemon)
    daemon.kill()
    assert (folder / "saved.txt").read_text() == "saved"


def test_the_lines_of_a_chunk_come_together_and_of_a_progress_bar_its_newest_state() -> None:
    calls: list[list[str]] = []
    split = LineSplitter(calls.append, every_seconds=0)
    for number in range(3):
        split.feed(b"%d of 3\r" % number)
        assert len(split.rest) <= len(b"0 of 3\r")
    for chunk in (b"3 of 3\ntwo\n10 %\r50", b" %\r100 %\nhalf", b""):
        split.feed(chunk)

    assert calls[-4:] == [["2 of 3"], ["3 of 3", "two", "50"], ["100 %"], ["half"]]


def test_of_a_line_that_does_not_end_no_more_is_kept_than_one_chunk() -> None:
    calls: list[list[str]] = []
    split = LineSplitter(calls.append)
    for _ in range(3):
        split.feed(b"x" * CHUNK_BYTES)
        assert len(split.rest) == CHUNK_BYTES
    split.feed(b"\nnext\n")

    assert calls == [["x" * CHUNK_BYTES, "next"]]


def test_dvc_that_was_killed_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    killed = partial(signal.raise_signal, signal.SIGKILL)

    outcome = asyncio.run(run_in_group("x", killed, Path(), os.environ, list[str]().extend))

    assert (outcome.result, outcome.exit_code) == ("failed", -signal.SIGKILL)


@pytest.mark.parametrize(
    ("exit_code", "transient"), [(69, True), (75, True), (143, True), (-15, True), (2, False), (28, False), (65, False)]
)
def test_outages_and_stopped_stages_are_transient_failures(exit_code: int, transient: bool) -> None:
    assert StageOutcome("x", "failed", exit_code=exit_code).transient == transient
