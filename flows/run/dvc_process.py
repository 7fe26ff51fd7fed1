"""Run `dvc repro` in a child of a fork server that has imported DVC.

DVC decides if a stage must run, and records its result; nothing of DVC is patched. To import DVC takes twice as long as
DVC's work for a trivial stage, so the standard library's fork server imports it once, while Prefect is imported.

Each command leads its own session and process group. The group ends when the command or this process ends, in any way:
programs get SIGTERM and save, and DVC, which lives longer than its program, releases its locks.
"""

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from flows.run.dvc_child import GRACE_SECONDS, Did, repro, run_in_child
from flows.run.outcome import KILLED, StageOutcome
from flows.run.programs import group_lives, last_error, signal_group, stopping_on_signals
from stages.runtime.errors import END_FILE, EXIT_REFUSED, UserError, private_state_dir
from stages.runtime.supervision import describe_kill, memory_kills, seconds_since_saving

CHUNK_BYTES = 20_000
"""The maximum number of bytes per read, and of a line without an end. The lines of one read are one entry of Prefect's
log, and Prefect Cloud cuts off an entry above 25,000 bytes."""

FORKS = multiprocessing.get_context("forkserver")

PRELOADED = ("dvc.cli.parser", "dvc.commands.repro", "dvc.repo.reproduce", "dvc.stage.run", "dvc.cachemgr")
"""The modules that `dvc repro` imports."""

_numbers = itertools.count()
"""Numbers for the files in which stages write their ends."""


def start_fork_server() -> None:
    """Start the fork server, which imports DVC in the background and ends with this process."""
    FORKS.set_forkserver_preload([*PRELOADED, run_in_child.__module__])
    usual = tempfile.gettempdir()
    # A socket's path has at most 104 bytes (macOS), and multiprocessing adds 32; a cluster's TMPDIR may be longer.
    tempfile.tempdir = usual if len(os.fsencode(usual)) < 70 else "/tmp"
    # Ctrl-C also reaches the fork server, and would interrupt its imports; `run_in_child` unblocks the signal.
    resource_tracker.ensure_running()  # the fork server starts it first, which unblocks it too early
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    forkserver.ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
    tempfile.tempdir = usual


async def run_repro(
    name: str,
    targets: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    on_lines: Callable[[list[str]], None],
    on_stage: Callable[[str], None] = lambda _: None,
    *,
    options: Sequence[str] = (),
    pull: bool = False,
) -> StageOutcome:
    """Run `dvc repro` with these options in a project's folder, by `run_in_group`.

    With `pull`, DVC restores the results that the DVC remote has.
    """
    work = partial(repro, list(targets), list(options), pull=pull)
    return await run_in_group(name, work, folder, environment, on_lines, on_stage)


async def run_in_group(
    name: str,
    work: Callable[[], int],
    folder: Path,
    environment: Mapping[str, str],
    on_lines: Callable[[list[str]], None],
    on_stage: Callable[[str], None] = lambda _: None,
) -> StageOutcome:
    """Do `work`, which returns an exit code, in a child in a project's folder; return its outcome under this name.

    `on_lines` gets the lines that programs print, `on_stage` the name of each stage whose command DVC starts. If the
    calling task is cancelled, end the command (SIGTERM, later SIGKILL); the result is then `stopped`. Raises UserError
    if no process can be started.
    """
    began, kills_before = time.perf_counter(), memory_kills()
    lines: list[str] = []
    stage_end = private_state_dir(folder).absolute() / f"ends/{next(_numbers)}.json"
    stage_end.parent.mkdir(exist_ok=True)
    stage_end.unlink(missing_ok=True)

    def take(more: list[str]) -> None:
        lines.extend(more)
        del lines[:-100]  # the last ones have the error message
        on_lines(more)

    output, report, process = _started(work, folder, {**environment, END_FILE: str(stage_end)})
    follower = _Follower(output, LineSplitter(take), report, on_stage)
    with follower:
        stopped = await _to_the_end(process, folder)
    code, stage_code, message = follower.ended or (-signal.SIGKILL, None, "")
    if code and stage_code is not None:
        message = last_error(lines) or message
        with contextlib.suppress(OSError, ValueError):  # not written: another program, or a full disk
            stage_code, message = json.loads(stage_end.read_text(encoding="utf-8"))
    stage_end.unlink(missing_ok=True)
    seconds = time.perf_counter() - began
    if not code:
        return StageOutcome(name, follower.did, seconds)
    exit_code = code if stage_code is None else stage_code
    if exit_code == EXIT_REFUSED:
        return StageOutcome(name, "refused", seconds, message, exit_code)
    if stopped:
        return StageOutcome(name, "stopped", seconds)
    if exit_code in KILLED:
        message = describe_kill(memory_kills() > kills_before)
    return StageOutcome(name, "failed", seconds, message, exit_code)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main program, which multiprocessing would run again in each child."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _started(
    work: Callable[[], int], folder: Path, environment: Mapping[str, str]
) -> tuple[Connection, Connection, ForkServerProcess]:
    output, to_output = FORKS.Pipe(duplex=False)
    report, to_report = FORKS.Pipe(duplex=False)
    handed_down = (work, str(folder.absolute()), dict(environment), to_output, to_report)
    process = FORKS.Process(target=run_in_child, args=handed_down)
    try:
        with to_output, to_report, _without_main():
            process.start()
    except (OSError, EOFError) as error:
        raise UserError(
            f"no process can be started for a stage ({error}): free memory, or raise the limit of processes "
            "(`ulimit -u`), and run the same command again"
        ) from error
    return output, report, process


@dataclass
class LineSplitter:
    """Splits a stream into lines. Of a line that overwrites itself by `\\r`, it shows some states."""

    on_lines: Callable[[list[str]], None]
    """Gets all lines that one chunk completes: a call for each line would slow down a stage that prints a lot."""
    rest: bytes = b""
    every_seconds: float = 5.0
    """The minimum interval between two states of a line that overwrites itself."""
    _shown: float = field(default_factory=time.monotonic)

    def feed(self, chunk: bytes) -> None:
        """Take some bytes; an empty chunk ends the stream."""
        *whole, rest = (self.rest + chunk).split(b"\n")
        renewed = rest.rstrip(b"\r").rfind(b"\r") + 1
        self.rest = rest[renewed:][:CHUNK_BYTES]  # each call splits all of it again
        if not chunk and self.rest:
            whole, self.rest = [self.rest], b""
        elif renewed and time.monotonic() - self._shown >= self.every_seconds:
            whole.append(self.rest)
        if whole:
            self._shown = time.monotonic()
            self.on_lines([line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2] for line in whole])


@dataclass
class _Follower:
    """Reads a child's output and reports as they arrive."""

    output: Connection
    lines: LineSplitter
    report: Connection
    on_stage: Callable[[str], None]
    did: Did = "unchanged"
    ended: tuple[int, int | None, str] | None = None

    def __enter__(self) -> None:
        os.set_blocking(self.output.fileno(), False)
        asyncio.get_running_loop().add_reader(self.output.fileno(), self._read_output)
        asyncio.get_running_loop().add_reader(self.report.fileno(), self._read_report)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._read_output():
                pass
        self.lines.feed(b"")
        while self._read_report():
            pass
        for pipe in (self.output, self.report):
            asyncio.get_running_loop().remove_reader(pipe.fileno())
            pipe.close()

    def _read_output(self) -> bool:
        if chunk := os.read(self.output.fileno(), CHUNK_BYTES):
            self.lines.feed(chunk)
        else:
            asyncio.get_running_loop().remove_reader(self.output.fileno())
        return bool(chunk)

    def _read_report(self) -> bool:
        try:
            received = self.report.recv() if self.report.poll() else None
        except EOFError:
            received = None
        match received:
            case ("ran" | "restored" | "recorded" as did, str(stage)):
                self.did = did
                if did == "ran":
                    self.on_stage(stage)
            case (int(code), stage_code, str(message)):
                self.ended = (code, stage_code, message)
            case None:
                asyncio.get_running_loop().remove_reader(self.report.fileno())
        return received is not None


async def _to_the_end(process: ForkServerProcess, folder: Path) -> bool:
    """Wait until a child ends, then end the rest of its process group. Return True if the calling task was cancelled.

    Does not wait for the end of the output, which a background process outside the group may keep open for ever.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        loop.remove_reader(process.sentinel)
        ended.set()

    loop.add_reader(process.sentinel, end)
    stopped = False
    try:
        await ended.wait()
        await _end_group(process, ended, folder)
    except asyncio.CancelledError:
        stopped = True
        await _end_group(process, ended, folder)
    loop.remove_reader(process.sentinel)
    if ended.is_set():
        process.join()
    return stopped


async def _end_group(process: ForkServerProcess, ended: asyncio.Event, folder: Path) -> None:
    """Send SIGTERM to a command's process group, and SIGKILL to the members that still run after `GRACE_SECONDS`."""
    assert process.pid is not None
    began = time.monotonic()
    if group_lives(process.pid):
        signal_group(process.pid, signal.SIGTERM)
    elif not ended.is_set():  # it has no process group yet
        process.terminate()
    while not ended.is_set() or group_lives(process.pid):
        waited = min(time.monotonic() - began, seconds_since_saving(folder))
        if waited > GRACE_SECONDS + 5:
            return  # a process that survives SIGKILL waits for a device
        if waited > GRACE_SECONDS:
            signal_group(process.pid, signal.SIGKILL)
        await asyncio.sleep(0.05)


def run_to_end(command: Coroutine[Any, Any, StageOutcome]) -> StageOutcome:
    """Run a command outside a flow run. Ctrl-C, SIGTERM and a closed terminal end it, with the result `stopped`."""

    async def run() -> StageOutcome:
        running = asyncio.create_task(command)
        with stopping_on_signals(running.cancel):
            return await running

    return asyncio.run(run())
