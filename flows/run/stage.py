"""One stage as a process: `dvc repro --single-item STAGE`, in a child of a fork server that has imported DVC.

DVC decides whether the stage has to run, and records its result; nothing of DVC is patched. The import of DVC takes
twice as long as what DVC then does for a trivial stage, so the standard library's fork server does it once, while
Prefect is imported.

Each stage leads a session and a process group of its own, so everything that it starts can be ended together. It ends
with its run, however the run ends: its program gets SIGTERM and saves, and DVC, which outlives its program, releases
what it has locked.
"""

import asyncio
import contextlib
import logging
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection, forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from flows.dvc_repo import fetch_result
from flows.run.outcome import KILLED, StageOutcome, StageResult
from flows.run.programs import group_lives, last_error, signal_group
from stages.runtime.errors import EXIT_REFUSED, UserError
from stages.runtime.supervision import describe_kill, memory_kills, seconds_since_saving

GRACE_SECONDS = 35.0
"""Between TERM, or the last sign that a training saves its state, and KILL."""

KILL_SECONDS = 5.0
"""After KILL; what still runs then waits for a device and is left alone."""

CHUNK_BYTES = 1 << 16
"""Read at once, and kept of a line that does not end."""

FORKS = multiprocessing.get_context("forkserver")

PRELOADED = ("dvc.cli.parser", "dvc.commands.repro", "dvc.repo.reproduce", "dvc.stage.run", "dvc.cachemgr")
"""What `dvc repro` imports."""


def import_dvc() -> None:
    """Start the fork server, which imports DVC meanwhile. It ends with this process."""
    FORKS.set_forkserver_preload([*PRELOADED, __name__])
    usual = tempfile.gettempdir()
    # A socket's path has at most 104 bytes (macOS), and multiprocessing adds 32; a cluster's TMPDIR may be longer.
    tempfile.tempdir = usual if len(os.fsencode(usual)) < 70 else "/tmp"
    forkserver.ensure_running()
    tempfile.tempdir = usual


def reproduce(work: Callable[[], int], environment: Mapping[str, str], output: Connection, report: Connection) -> None:
    """Run `work` and end this process. `report` gets the exit code that it returns, and DVC's messages."""
    os.setsid()
    run = multiprocessing.parent_process()
    assert run is not None
    end_after(partial(connection.wait, [run.sentinel]))
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    os.environ.clear()
    os.environ.update(environment)
    messages = _Messages()
    for name in ("dvc", "dvc_objects", "dvc_data"):
        logging.getLogger(name).handlers = [messages]
    # Programs write to descriptor 1, DVC's advice and progress bars to this.
    sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    try:
        report.send((work(), messages.texts))
    except UserError as error:
        report.send((error.exit_code, [str(error)]))
    os._exit(0)  # an orderly end with DVC imported takes 0.25 s


def repro_stage(name: str, options: Sequence[str] = (), *, pull: bool) -> int:
    """`dvc repro --single-item`, after the stage's result was fetched with `pull`; its exit code.

    DVC's own --pull fails if an object is missing. Raises as `fetch_result`.
    """
    from dvc.cli import main

    if pull and (lacking := fetch_result(name)):
        os.write(1, f"warning: the DVC remote does not have {', '.join(lacking[:3])}; computing {name}\n".encode())
    return int(main(["--wait-for-lock", "repro", "--single-item", name, *options]))


def end_after(wait: Callable[[], object]) -> None:
    """Once `wait` returns, end this process group. DVC outlives its program and releases its locks."""

    def end() -> None:
        wait()
        os.killpg(0, signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        while seconds_since_saving() < GRACE_SECONDS:
            time.sleep(1)
        os.killpg(0, signal.SIGKILL)

    # A handler, since programs would inherit that a signal is ignored.
    signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=end, daemon=True).start()


class _Messages(logging.Handler):
    """Keeps what DVC says; warnings are printed among the stage's own lines."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        causes: list[str] = []
        error = record.exc_info[1] if record.exc_info else None
        while error is not None:
            causes.append(str(error))
            error = error.__cause__
        text = ": ".join(filter(None, [record.getMessage(), *causes]))
        self.texts.append(text)
        if record.levelno == logging.WARNING:
            os.write(1, f"{text}\n".encode())


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """While within, hide the main program, which multiprocessing would run again in each child."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


async def run_stage(
    name: str,
    environment: Mapping[str, str],
    on_lines: Callable[[list[str]], None],
    *,
    options: Sequence[str] = (),
    pull: bool = False,
) -> StageOutcome:
    """Run a stage to its end, with these options of `dvc repro`; `on_lines` gets the lines that its command prints.

    With `pull`, results that the DVC remote has are restored.

    If the calling task is cancelled, the stage is ended (TERM, later KILL), and its outcome is `stopped`.
    """
    began, kills_before = time.perf_counter(), memory_kills()
    kept: list[str] = []

    def take(lines: list[str]) -> None:
        kept.extend(lines)
        del kept[:-100]
        on_lines(lines)

    output, report, process = _started(partial(repro_stage, name, options, pull=pull), environment)
    stopped, reported = await _to_the_end(process, output, report, LineSplitter(take))
    code, messages = reported or (-signal.SIGKILL, [])
    outcome = read_outcome(name, code, messages, kept, time.perf_counter() - began)
    if outcome.result != "failed":
        return outcome
    if stopped:
        return StageOutcome(name, "stopped", outcome.seconds)
    if outcome.exit_code in KILLED:
        message = describe_kill(memory_kills() > kills_before)
        return StageOutcome(name, "failed", outcome.seconds, message, outcome.exit_code)
    return outcome


def _started(
    work: Callable[[], int], environment: Mapping[str, str]
) -> tuple[Connection, Connection, ForkServerProcess]:
    output, to_output = FORKS.Pipe(duplex=False)
    report, to_report = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=reproduce, args=(work, dict(environment), to_output, to_report))
    try:
        with to_output, to_report, _without_main():
            process.start()
    except (OSError, EOFError) as error:
        raise UserError(
            f"no process can be started for a stage ({error}): free memory, or raise the limit of processes "
            "(`ulimit -u`), and run the same command again"
        ) from error
    return output, report, process


async def _to_the_end(
    process: ForkServerProcess, output: Connection, report: Connection, lines: "LineSplitter"
) -> tuple[bool, list[Any]]:
    """Read what a stage prints until it has ended, and end what it left in its process group.

    Returns whether it was stopped, and what `reproduce` reports; nothing if it was killed before.

    A background process outside the group may keep the output open for ever, so its end is not waited for.
    """
    loop, ended, descriptor = asyncio.get_running_loop(), asyncio.Event(), output.fileno()
    reported: list[Any] = []
    os.set_blocking(descriptor, False)

    def read() -> None:
        if chunk := os.read(descriptor, CHUNK_BYTES):
            lines.feed(chunk)
        else:
            loop.remove_reader(descriptor)

    def hear() -> None:
        loop.remove_reader(report.fileno())
        with contextlib.suppress(EOFError, OSError):  # killed before or while it reported
            reported.extend(report.recv())

    def end() -> None:
        loop.remove_reader(process.sentinel)
        ended.set()

    loop.add_reader(descriptor, read)
    loop.add_reader(report.fileno(), hear)  # at once: it may be more than a pipe holds
    loop.add_reader(process.sentinel, end)
    stopped = False
    try:
        await ended.wait()
        await _end(process, ended)
    except asyncio.CancelledError:
        stopped = True
        await _end(process, ended)
    if report.poll():
        hear()
    report.close()
    loop.remove_reader(descriptor)
    loop.remove_reader(process.sentinel)
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(descriptor, CHUNK_BYTES):
            lines.feed(chunk)
    lines.feed(b"")
    output.close()
    if ended.is_set():
        process.join()
    return stopped, reported


async def _end(process: ForkServerProcess, ended: asyncio.Event) -> None:
    """Send SIGTERM to a stage and everything it started, and SIGKILL to what is left after `GRACE_SECONDS`."""
    assert process.pid is not None
    began = time.monotonic()
    if group_lives(process.pid):
        signal_group(process.pid, signal.SIGTERM)
    elif not ended.is_set():  # it has no group of its own yet
        process.terminate()
    while not ended.is_set() or group_lives(process.pid):
        waited = min(time.monotonic() - began, seconds_since_saving())
        if waited > GRACE_SECONDS + KILL_SECONDS:
            return
        if waited > GRACE_SECONDS:
            signal_group(process.pid, signal.SIGKILL)
        await asyncio.sleep(0.05)


RENEWED_SECONDS = 5.0
"""Between two states shown of a line that renews itself, such as a progress bar."""


@dataclass
class LineSplitter:
    """Splits a stream into lines. Of a line that renews itself by `\\r`, the newest state is shown now and then."""

    on_lines: Callable[[list[str]], None]
    """Gets all lines that one chunk completes: a call for each line would slow down a stage that prints a lot."""
    rest: bytes = b""
    every_seconds: float = RENEWED_SECONDS
    _shown: float = field(default_factory=time.monotonic)

    def feed(self, chunk: bytes) -> None:
        """Take some bytes; an empty chunk is the end."""
        *whole, rest = (self.rest + chunk).split(b"\n")
        renewed = rest.rstrip(b"\r").rfind(b"\r") + 1
        self.rest = rest[renewed:][:CHUNK_BYTES]  # all of it is split again with every chunk
        if not chunk and self.rest:
            whole, self.rest = [self.rest], b""
        elif renewed and time.monotonic() - self._shown >= self.every_seconds:
            whole.append(self.rest)
        if whole:
            self._shown = time.monotonic()
            self.on_lines([line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2] for line in whole])


def exit_code_in(message: str) -> int | None:
    """A command's exit code, which DVC keeps in its message alone (`StageCmdFailedError`, read in 3.67.1)."""
    found = re.search(r"exited with (-?\d+)\s*$", message)
    return int(found.group(1)) if found else None


def read_outcome(name: str, code: int, messages: Sequence[str], lines: Sequence[str], seconds: float) -> StageOutcome:
    """A stage's outcome from DVC's exit code and messages. A failure has the stage's own last error, else DVC's."""
    if code:
        failure = messages[-1] if messages else ""
        of_command, own = exit_code_in(failure), last_error(lines)
        exit_code = code if of_command is None else of_command
        result: StageResult = "refused" if exit_code == EXIT_REFUSED else "failed"
        return StageOutcome(name, result, seconds, own if of_command is not None and own else failure, exit_code)
    if any("is cached - skipping run" in message for message in messages):
        return StageOutcome(name, "restored", seconds)
    if any(message.startswith("Running stage") for message in messages):
        return StageOutcome(name, "ran", seconds)
    if any(message.startswith("Verifying ") for message in messages):
        return StageOutcome(name, "recorded", seconds)
    return StageOutcome(name, "unchanged", seconds)
