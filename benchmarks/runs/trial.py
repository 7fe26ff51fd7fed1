"""One trial of the campaign: a project, the command that is disturbed, and the judgement on how it ended."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import TypeAlias

import psutil

from benchmarks.runs.small_pipeline import (
    Edit,
    Projects,
    Reference,
    Work,
    environment,
    lock_entries,
    remove,
    results,
    starts,
)

Process: TypeAlias = "subprocess.Popen[bytes]"

ATTEMPTS = 6
"""Attempts in which the same command has to succeed after the fault. It is refused while orphaned processes run."""

HANGS_AFTER_SECONDS = 420.0

ORPHANS_END_WITHIN_SECONDS = 90.0

TRACEBACK = "Traceback (most recent call last)"

MISSED_AT_MOST = 4
"""A fault that comes after the run has ended is repeated, earlier, in a new copy of the project."""


class FailedTrialError(Exception):
    """A trial ended with wrong results, or without telling a user what to do."""

    outcome = "unclear"


class WrongResultError(FailedTrialError):
    """Results, or what dvc.lock says of them, are not those of an undisturbed run."""

    outcome = "wrong"


class MissedError(Exception):
    """The run had ended before the fault came."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of the command."""

    code: int
    said: str

    def require_clear(self, what: str) -> None:
        """Raise FailedTrialError unless it succeeded, or says why not without a traceback."""
        if self.code == 0:
            return
        if TRACEBACK in self.said:
            raise FailedTrialError(f"{what} exited with {self.code} and a traceback:\n{self.said[-3000:]}")
        if self.code > 0 and not re.search(r"error|ERROR|failed|stopped|refused", self.said):
            raise FailedTrialError(f"{what} exited with {self.code} without a message:\n{self.said[-3000:]}")


@dataclass
class Trial:
    """One trial. All random choices come from `chance`, which the trial's number seeds."""

    number: int
    projects: Projects
    work: Work
    chance: Random
    pace: float = 1.0
    """A factor on the instant of the fault: lower is earlier."""
    seconds: float = 0.0
    """Of all attempts together."""
    refusals: int = 0
    """Attempts that failed, with a clear message."""
    last_refusal: str = ""
    """The end of what the last attempt said; empty if it succeeded."""
    told: list[str] = field(default_factory=list)
    """What was done to the run, for the report."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables of the disturbed attempt only."""
    lasting: dict[str, str] = field(default_factory=dict)
    """Environment variables of all attempts."""
    kept: tuple[Edit, ...] = ()
    """Edits during the run that stay."""
    seen: tuple[Edit, ...] = ()
    """Edits that a stage may have seen and recorded."""
    logs: dict[int, Path] = field(default_factory=dict)
    succeeded: bool = False
    """Whether the last attempt did."""
    finished: bool = False
    started: int = 0
    """Stages, by all attempts together."""
    stages_again: int = 0
    """How many more stages were started than in an undisturbed run."""

    def __post_init__(self) -> None:
        self.folder = self.projects.folder / "trials" / f"{self.number:04d}"
        remove(self.folder)
        self.projects.copy(self.work, self.folder)
        self.before = lock_entries(self.folder)
        self.undisturbed = self.projects.reference(self.work)

    def instant(self, earliest: float = 0.0, latest: float = 0.95) -> float:
        """Seconds from the start of the run, anywhere in its life."""
        return self.chance.uniform(earliest, latest) * self.undisturbed.seconds * self.pace

    def start(self, command: list[str] | None = None, variables: Mapping[str, str] = MappingProxyType({})) -> Process:
        """Start the command, or another one; its output goes to a file next to the project."""
        log = self.folder.with_suffix(f".{time.monotonic_ns()}.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                command or self.work.command,
                cwd=self.folder,
                env=environment(self.folder, **self.lasting, **variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.logs[process.pid] = log
        return process

    def wait(self, process: Process) -> Attempt:
        """Wait for the end of a run. Raises FailedTrialError if it hangs."""
        try:
            process.wait(HANGS_AFTER_SECONDS)
        except subprocess.TimeoutExpired:
            raise FailedTrialError(f"hangs: still running after {HANGS_AFTER_SECONDS:g} s") from None
        log = self.logs.pop(process.pid)
        said = log.read_text(encoding="utf-8", errors="replace")
        log.unlink()
        return Attempt(process.returncode, said)

    def attempt(self, disturb: Callable[[Process], None] | None = None) -> Attempt:
        """Run the command to its end, disturbed or not, and check how it ended."""
        began = time.monotonic()
        process = self.start(variables=self.variables if disturb else {})
        if disturb:
            disturb(process)
        attempt = self.wait(process)
        self.seconds += time.monotonic() - began
        self.started += starts(attempt.said)
        self.succeeded = attempt.code == 0
        attempt.require_clear("the disturbed run" if disturb else "the same command again")
        self.refusals += attempt.code > 0
        self.last_refusal = attempt.said[-1000:] if attempt.code else ""
        self.wait_for_orphans()  # they may still write dvc.lock
        self.check_lock()
        return attempt

    def sleep(self, process: Process, seconds: float) -> None:
        """Wait while the run works. Raises MissedError if it ends meanwhile."""
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise MissedError

    def check_lock(self) -> None:
        """Raise WrongResultError if dvc.lock has an entry that no undisturbed run would write."""
        possible = [self.before, self.undisturbed.stages]
        possible += [self.projects.reference(self.work, edit).stages for edit in (*self.seen, *self.kept)]
        for stage, entry in lock_entries(self.folder).items():
            if not any(entry == stages.get(stage) for stages in possible):
                raise WrongResultError(f"dvc.lock records of {stage} what was not computed: {entry}")

    def finish(self) -> None:
        """Repeat the command until it succeeds, and compare the results. Raises FailedTrialError."""
        self.wait_for_orphans()
        if self.kept or self.seen:
            self.succeeded = False  # of the state before or during the edit
        for _ in range(ATTEMPTS):
            if self.succeeded:
                break
            self.attempt()
            self.wait_for_orphans()
        if not self.succeeded:
            raise FailedTrialError(f"does not succeed: {ATTEMPTS} times refused, last:\n{self.last_refusal}")
        self.compare(self.projects.reference(self.work, *self.kept))
        self.stages_again = max(0, self.started - self.undisturbed.starts)
        self.finished = True

    def compare(self, expected: Reference) -> None:
        """Raise WrongResultError if the results are not the expected ones."""
        found, stages = results(self.folder), lock_entries(self.folder)
        wrong = sorted(name for name in found.keys() | expected.files if found.get(name) != expected.files.get(name))
        differing = {name for name in stages.keys() | expected.stages if stages.get(name) != expected.stages.get(name)}
        wrong += sorted(f"dvc.lock: {name}" for name in differing)
        if wrong:
            raise WrongResultError(f"wrong results: {', '.join(wrong[:10])}")

    def wait_for_orphans(self) -> None:
        """Wait for the processes of earlier attempts to end. Raises FailedTrialError if some do not."""
        deadline = time.monotonic() + ORPHANS_END_WITHIN_SECONDS
        began = time.monotonic()
        while left := members(self.folder):
            if time.monotonic() > deadline:
                raise FailedTrialError(f"left running: {[one.cmdline() for one in left]}")
            time.sleep(0.05)
        self.seconds += time.monotonic() - began

    @property
    def seconds_lost(self) -> float:
        """How much longer it took than an undisturbed run."""
        return max(0.0, self.seconds - self.undisturbed.seconds)

    def end(self) -> None:
        """End what still runs."""
        for one in members(self.folder):
            kill(one)


def members(folder: Path) -> list[psutil.Process]:
    """Every living process whose working directory is in the folder: all of a run, orphans included."""
    return list(_members(folder))


def _members(folder: Path) -> Iterator[psutil.Process]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink().is_relative_to(folder):
                one = psutil.Process(int(entry.name))
                if one.status() != psutil.STATUS_ZOMBIE:
                    yield one
        except (OSError, psutil.NoSuchProcess):
            continue


def kill(process: psutil.Process) -> None:
    """SIGKILL, if the process still exists."""
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


def describe(process: psutil.Process) -> str:
    """The kind of a process, in a word or two."""
    try:
        line = " ".join(process.cmdline())
        parents = [parent.pid for parent in process.parents()]
    except psutil.NoSuchProcess:
        return "a process"
    for mark, name in (
        ("stages.train.worker", "training worker"),
        ("accelerate", "accelerate's launcher"),
        ("flows.run.server", "Prefect's server"),
        ("stages.", "stage"),
        ("git", "git"),
    ):
        if mark in line and "flows.cli" not in line:
            return f"{name} ({line.rpartition(' ')[2]})" if name == "stage" else name
    if "flows.cli" in line:
        depth = sum("flows.cli" in _line(parent) for parent in parents)
        return ("run", "fork server", "DVC")[min(depth, 2)]
    return line[-60:]


def _line(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return ""
