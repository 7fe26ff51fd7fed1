"""One stage as a child process: streamed, timed, and ended with all that it started.

`dvc repro --single-item STAGE` takes the decision and keeps the books, so that the result is that of `dvc repro`. DVC
leaves its command alive when it is killed; therefore the child leads a session of its own and the whole group is ended.
"""

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from stages.runtime.entry import EXIT_UNAVAILABLE

GRACE_SECONDS = 35
"""Between TERM and KILL: torch's launcher gives its workers 30 s."""

Result = Literal["ran", "unchanged", "restored", "refused", "failed", "stopped"]

EXIT_AGAIN = 75
"""A stage was asked to stop and has saved what it had: the same command goes on (EX_TEMPFAIL of sysexits.h)."""

VMSTAT = Path("/proc/vmstat")

_EXIT = re.compile(r"exited with (-?\d+)")


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """How a stage ended."""

    name: str
    result: Result
    """unchanged: DVC found that nothing changed after all (early cut-off); restored: from the run-cache; refused: its
    gate did not let it run."""
    seconds: float
    message: str = ""
    """Of a failure: the stage's own words."""
    exit_code: int = 0
    """Of the stage's command; negative for a signal."""

    @property
    def passing(self) -> bool:
        """Whether the failure may pass by itself, so that a retry can help."""
        return self.result == "failed" and self.exit_code in (EXIT_UNAVAILABLE, EXIT_AGAIN)


@dataclass
class Children:
    """The children that run now, so that a signal can end all of them."""

    stopping: bool = False
    _running: set["subprocess.Popen[bytes]"] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(
        self,
        name: str,
        start: Callable[[], "subprocess.Popen[bytes]"],
        on_line: Callable[[str], None],
        timeout_seconds: float | None = None,
    ) -> StageOutcome:
        """Run the child that `start` starts to its end, giving each line of its output to `on_line`."""
        began, kills_before = time.perf_counter(), memory_kills()
        with self._lock:
            if self.stopping:
                return StageOutcome(name, "stopped", 0.0)
            process = start()
            self._running.add(process)
        lines: list[str] = []
        late = threading.Event()
        timer = threading.Timer(timeout_seconds or threading.TIMEOUT_MAX, self._end_late, [process, late])
        if timeout_seconds is not None:
            timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                # A line that renews itself in a terminal counts with its last state.
                text = line.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2]
                lines.append(text)
                on_line(text)
            code = process.wait()
        finally:
            timer.cancel()
            with self._lock:
                self._running.discard(process)
        outcome = read_outcome(name, code, lines, time.perf_counter() - began, self.stopping)
        if late.is_set() and outcome.result == "failed":
            words = f"took longer than timeout_seconds = {timeout_seconds:g} (meta.flow in dvc.yaml) and was ended"
            return replace(outcome, message=words, exit_code=0)
        if outcome.exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL):
            return replace(outcome, message=killed_words(memory_kills() > kills_before))
        return outcome

    def _end_late(self, process: "subprocess.Popen[bytes]", late: threading.Event) -> None:
        late.set()
        end_groups([process])

    def stop(self) -> None:
        """TERM to every group, KILL to those that have not ended `GRACE_SECONDS` later."""
        with self._lock:
            self.stopping = True
            processes = list(self._running)
        end_groups(processes)


def end_groups(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """TERM to the groups that the processes lead, KILL to those that have not ended `GRACE_SECONDS` later."""
    groups = [process.pid for process in processes]
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


def memory_kills() -> int:
    """How many processes Linux has killed for memory so far; 0 where it does not tell."""
    if not VMSTAT.exists():
        return 0
    lines = (line.split() for line in VMSTAT.read_text(encoding="utf-8").splitlines())
    return next((int(value) for name, value in lines if name == "oom_kill"), 0)


def killed_words(for_memory: bool) -> str:
    """Why a stage got SIGKILL, and what to do."""
    if not for_memory:
        return "was killed (SIGKILL) from outside; the same command goes on"
    return (
        "was killed because the memory ran out; give it more, or lower PARROTFLOW_WORKERS (data stages) or "
        "PARROTFLOW_MICRO_BATCH (training); the same command goes on"
    )


def group_lives(group: int) -> bool:
    """Whether a process group has a member."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def repro_arguments(stage: str, *, force: bool = False, pull: bool = False) -> list[str]:
    """DVC's arguments to bring one stage up to date. `--wait-for-lock`: others may work beside it."""
    options = [*(["--force"] if force else []), *(["--pull"] if pull else [])]
    return ["--wait-for-lock", "repro", "--single-item", *options, stage]


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
