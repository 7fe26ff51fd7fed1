"""One stage as a process: its output read line by line, its time limited, and ended with all that it started.

`dvc repro --single-item STAGE` decides whether the stage has to run and records the result, so a run ends as plain
`dvc repro` would. DVC leaves its command alive when it is killed; therefore the whole process group is ended.
"""

import contextlib
import os
import re
import resource
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from flows.run.outcome import StageOutcome, StageResult
from flows.run.programs import group_lives, last_error, signal_group
from stages.runtime.entry import EXIT_REFUSED

if TYPE_CHECKING:
    from flows.run.dvc_server import DvcServer

GRACE_SECONDS = 35
"""Between TERM and KILL: torch's launcher gives its workers 30 s."""

POLL_SECONDS = 0.2
CHUNK_BYTES = 1 << 16

VMSTAT = Path("/proc/vmstat")

_EXIT = re.compile(r"exited with (-?\d+)\s*$")


END = "\0end "
"""Before DVC's exit code and the processor time, in the last message of a stage's process; one without was killed."""


@dataclass(frozen=True, slots=True)
class StageRequest:
    """Bring one stage up to date."""

    stage: str
    folder: str = ""
    """The project's folder, where it is not that of the run."""
    force: bool = False
    pull: bool = False
    check_cache: bool = False
    """Whether its result may come from DVC's cache, so that damaged entries are to be dropped first."""
    environment: dict[str, str | None] = field(default_factory=dict)
    """Variables to set for this stage; None removes one."""


@dataclass(frozen=True, slots=True)
class StageProcess:
    """A stage that is being brought up to date. It leads a session and a process group of its own."""

    pid: int
    output: int
    """Descriptor of what the stage's command prints."""
    messages: int
    """Descriptor of what DVC itself prints; at its end the process has ended."""


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """While within, Ctrl-C, SIGTERM and a closed terminal call `stop`. Other threads than the main one change nothing.

    After a SIGTERM another one changes nothing, also later: it must not kill a run that says how it has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            before[signal.SIGTERM] = lambda number, frame: None
        stop()

    # `nohup` ignores SIGHUP on purpose.
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM, *hangup)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
        """Take some bytes; none at all mean the end."""
        *whole, rest = (self.rest + chunk).split(b"\n")
        renewed = rest.rstrip(b"\r").rfind(b"\r") + 1
        self.rest = rest[renewed:]  # older states would be split again with every chunk
        if not chunk and self.rest:
            whole, self.rest = [self.rest], b""
        elif renewed and time.monotonic() - self._shown >= self.every_seconds:
            whole.append(self.rest)
        if whole:
            self._shown = time.monotonic()
            self.on_lines([line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2] for line in whole])


@dataclass
class StageRunner:
    """Runs stages, each in the thread that asks for it, until `stop` is called."""

    server: "DvcServer"
    stopping: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """End what runs (TERM, later KILL), and start nothing more."""
        self.stopping.set()

    def run(
        self,
        request: StageRequest,
        on_lines: Callable[[list[str]], None],
        timeout_seconds: float | None = None,
        give_up: Callable[[], str] = lambda: "",
    ) -> StageOutcome:
        """Run a stage to its end, giving the lines that its command prints to `on_lines`.

        `give_up` is asked several times a second; a text that is not empty says why the stage is ended.
        """
        if self.stopping.is_set():
            return StageOutcome(request.stage, "stopped")
        began, kills_before = time.perf_counter(), memory_kills()
        lines: list[str] = []
        messages: list[str] = []

        def take_lines(new: list[str]) -> None:
            lines.extend(new)
            del lines[:-100]
            on_lines(new)

        def take_messages(new: list[str]) -> None:
            messages.extend(new)
            if warnings := [text.removeprefix("WARNING: ") for text in new if text.startswith("WARNING: ")]:
                on_lines(warnings)

        process = self.server.start(request)
        deadline = time.monotonic() + (timeout_seconds or threading.TIMEOUT_MAX)
        given_up = ""

        def reason_to_end() -> str:
            nonlocal given_up
            if time.monotonic() > deadline:
                return f"took longer than timeout_seconds = {timeout_seconds:g} (meta.flow in dvc.yaml) and was ended"
            given_up = give_up()
            return given_up

        ended_for = self._read_to_the_end(process, LineSplitter(take_lines), LineSplitter(take_messages), reason_to_end)
        outcome = read_outcome(request.stage, messages, lines, time.perf_counter() - began)
        if self.stopping.is_set() and outcome.result == "failed":
            return replace(outcome, result="stopped", message="")
        if ended_for and outcome.result == "failed":
            return replace(outcome, result="stopped" if given_up else "failed", message=ended_for, exit_code=0)
        if outcome.exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL):
            return replace(outcome, message=describe_kill(memory_kills() > kills_before))
        if outcome.result == "failed":
            return replace(outcome, message=outcome.message + memory_limit())
        return outcome

    def _read_to_the_end(
        self, process: StageProcess, output: LineSplitter, messages: LineSplitter, reason_to_end: Callable[[], str]
    ) -> str:
        """Read until the process has ended, ending its group where that is asked for; the reason, if there was one.

        A command's background process may keep the output open for ever, so its end is not waited for.
        """
        kill_at: float | None = None
        has_ended, ended_for = False, ""
        with selectors.DefaultSelector() as selector:
            for descriptor, lines in ((process.output, output), (process.messages, messages)):
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ, lines)
            while not has_ended or (kill_at is not None and group_lives(process.pid)):
                for key, _ in selector.select(POLL_SECONDS):
                    chunk = os.read(key.fd, CHUNK_BYTES)
                    key.data.feed(chunk)
                    if not chunk:
                        selector.unregister(key.fd)
                        has_ended |= key.fd == process.messages
                now = time.monotonic()
                if not ended_for and not self.stopping.is_set():
                    ended_for = reason_to_end()
                if kill_at is None and (ended_for or self.stopping.is_set()):
                    kill_at = now + GRACE_SECONDS
                    signal_group(process.pid, signal.SIGTERM)
                elif kill_at is not None and now > kill_at:
                    signal_group(process.pid, signal.SIGKILL)
                if has_ended and not selector.get_map():
                    time.sleep(0.01)
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(process.output, CHUNK_BYTES):
                    output.feed(chunk)
            output.feed(b"")
        os.close(process.output)
        os.close(process.messages)
        return ended_for


def memory_kills() -> int:
    """How many processes Linux has killed for lack of memory so far; 0 where it does not count them."""
    if not VMSTAT.exists():
        return 0
    lines = (line.split() for line in VMSTAT.read_text(encoding="utf-8").splitlines())
    return next((int(value) for name, value in lines if name == "oom_kill"), 0)


def memory_limit() -> str:
    """What to add to a failure where the shell limits the memory: libraries then fail in words that do not say so."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return (
        f" (this shell limits memory to {limit / 1e9:.1f} GB: `ulimit -v`)" if limit != resource.RLIM_INFINITY else ""
    )


def describe_kill(for_memory: bool) -> str:
    """Why a stage got SIGKILL, and what to do."""
    if not for_memory:
        return "was killed (SIGKILL) from outside; the same command continues"
    return (
        "was killed because the memory ran out; give it more, or lower PARROTFLOW_WORKERS (data stages) or "
        "PARROTFLOW_MICRO_BATCH (training); the same command continues"
    )


def read_outcome(name: str, messages: Sequence[str], lines: Sequence[str], seconds: float) -> StageOutcome:
    """What became of a stage, from DVC's messages; of a failure the stage's own last error, else DVC's."""
    if not messages or not messages[-1].startswith(END):
        return StageOutcome(name, "failed", seconds, message=describe_kill(False), exit_code=-signal.SIGKILL)
    said, cpu = messages[-1].removeprefix(END).split()
    code, cpu_seconds = int(said), float(cpu)
    if code:
        # DVC's message, which may have several lines, ends with the command's exit code.
        first = next((number for number, message in enumerate(messages) if message.startswith("ERROR: ")), 0)
        failure = "\n".join(message for message in messages[first:-1])
        found = _EXIT.search(failure)
        own = last_error(lines)
        message = own if found and own else failure
        exit_code = int(found.group(1)) if found else code
        result: StageResult = "refused" if exit_code == EXIT_REFUSED else "failed"
        return StageOutcome(name, result, seconds, cpu_seconds, message, exit_code)
    if any("is cached - skipping run" in message for message in messages):
        return StageOutcome(name, "restored", seconds, cpu_seconds)
    if any(message.startswith("Running stage") for message in messages):
        return StageOutcome(name, "ran", seconds, cpu_seconds)
    if any(message.startswith("Verifying ") for message in messages):
        return StageOutcome(name, "recorded", seconds, cpu_seconds)
    return StageOutcome(name, "unchanged", seconds, cpu_seconds)
