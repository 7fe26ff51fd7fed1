"""One stage as a child process: streamed, timed, and ended with all that it started.

`dvc repro --single-item STAGE` takes the decision and keeps the books, so that the result is that of `dvc repro`. DVC
leaves its command alive when it is killed; therefore the child leads a session of its own and the whole group is ended.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

GRACE_SECONDS = 35
"""Between TERM and KILL: torch's launcher gives its workers 30 s."""

Result = Literal["ran", "unchanged", "restored", "failed", "stopped"]

_EXIT = re.compile(r"exited with (-?\d+)")


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """How a stage ended."""

    name: str
    result: Result
    """unchanged: DVC found that nothing changed after all (early cut-off); restored: from the run-cache."""
    seconds: float
    message: str = ""
    """Of a failure: the stage's own words."""
    exit_code: int = 0
    """Of the stage's command."""


@dataclass
class Children:
    """The children that run now, so that a signal can end all of them."""

    stopping: bool = False
    _running: set["subprocess.Popen[str]"] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, name: str, command: Sequence[str], on_line: Callable[[str], None]) -> StageOutcome:
        """Run a stage's command to its end, giving each line of its output to `on_line`."""
        began = time.perf_counter()
        with self._lock:
            if self.stopping:
                return StageOutcome(name, "stopped", 0.0)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._running.add(process)
        lines: list[str] = []
        try:
            assert process.stdout is not None
            for line in process.stdout:
                # A line that renews itself in a terminal counts with its last state.
                text = line.rstrip("\n").rpartition("\r")[2]
                lines.append(text)
                on_line(text)
            code = process.wait()
        finally:
            with self._lock:
                self._running.discard(process)
        return read_outcome(name, code, lines, time.perf_counter() - began, self.stopping)

    def stop(self) -> None:
        """TERM to every group, KILL to those that have not ended `GRACE_SECONDS` later."""
        with self._lock:
            self.stopping = True
            groups = [process.pid for process in self._running]
            processes = list(self._running)
        for group in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and any(map(group_lives, groups)):
            for process in processes:
                process.poll()
            time.sleep(0.1)
        for group in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def group_lives(group: int) -> bool:
    """Whether a process group has a member."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def dvc_command(stage: str, *, force: bool = False, pull: bool = False) -> list[str]:
    """The command that brings one stage up to date. `--wait-for-lock`: others may work beside it."""
    options = [*(["--force"] if force else []), *(["--pull"] if pull else [])]
    return [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--single-item", *options, stage]


def read_outcome(name: str, code: int, lines: Sequence[str], seconds: float, stopping: bool) -> StageOutcome:
    """What became of a stage, from DVC's exit code and words."""
    if code and stopping:
        return StageOutcome(name, "stopped", seconds)
    if code:
        exits = [int(found.group(1)) for line in lines if (found := _EXIT.search(line))]
        own = [line for line in lines if line.startswith("error: ")]
        words = own or [line for line in lines if line.startswith("ERROR: ")] or list(lines[-1:])
        return StageOutcome(name, "failed", seconds, "\n".join(words), exits[-1] if exits else code)
    if any("is cached - skipping run" in line for line in lines):
        return StageOutcome(name, "restored", seconds)
    if any(line.startswith("Running stage") for line in lines):
        return StageOutcome(name, "ran", seconds)
    return StageOutcome(name, "unchanged", seconds)
