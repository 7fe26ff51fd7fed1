"""Who waits for whom: one run at a time in a workspace; of its stages some at once, and some never together.

The second run waits, or is refused with the first one's name.

The lock is the kernel's (flock), so it ends with the processes that hold it, however they end. The commands of a run's
stages inherit it: one that outlives a killed run still keeps the workspace locked. A run that ends by itself releases
the lock, whatever its stages have left in the background. The text in the file only names the holder.

`PARROTFLOW_RESOURCES=accelerator=4 PARROTFLOW_STAGES_AT_ONCE=4` lets four stages run at once that need the accelerator;
each then sees a quarter of the GPUs, or without any of the cores.
"""

import fcntl
import json
import os
import platform
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from pathlib import Path

import psutil

from stages.runtime.entry import UserError, parsed_whole_number, whole_number
from stages.runtime.workers import cpu_facts

LOCK = Path(".parrotflow/run.lock")

print_at_once = partial(print, flush=True)

ENDING_SECONDS = 120.0
"""How long the next run waits for the stage of one that was killed: it saves what it has, and ends by itself."""

START_SLACK_SECONDS = 2.0
"""By how much two readings of one process's start may differ, where the clock was set meanwhile."""

_KILLED = "was killed; waiting until its stage has saved and ended"

_held: dict[Path, int] = {}

_killed: list[str] = []
"""What the locks said of killed runs that this process has taken over."""


@contextmanager
def run_lock(
    name: str,
    *,
    wait: bool = False,
    folder: Path = Path(),
    say: Callable[[str], None] = print_at_once,
) -> Iterator[None]:
    """Lock a workspace; within a lock that this process already holds, do nothing.

    Raises UserError that names the run which holds it, unless `wait`: then `say` is told for whom this one waits.
    Where that run was killed, its stage is given time to end.
    """
    path = (folder / LOCK).resolve()
    if path in _held:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    ignored = path.with_name(".gitignore")
    if not ignored.exists():
        ignored.write_text("*\n", encoding="utf-8")
    with path.open("a+", encoding="utf-8") as file:
        noted, deadline = False, time.monotonic() + ENDING_SECONDS
        while not _locked(file.fileno()):
            file.seek(0)
            holder = Holder.named_in(file.read())
            if not wait and (holder.is_alive() or time.monotonic() > deadline):
                stage = "" if holder.is_alive() else "the stage of "
                raise UserError(f"{stage}{holder} is using this folder; wait for it (--wait), or end it")
            if not noted:
                ending = "is using this folder; waiting for its end" if holder.is_alive() else _KILLED
                say(f"{holder} {ending} ...")
                noted = True
            time.sleep(0.5)
        file.seek(0)
        left = file.read()
        if Holder.named_in(left).flow_run:
            _killed.append(left)
        file.truncate(0)
        since = datetime.now(UTC).isoformat("T", "seconds")
        own = {"name": name, "pid": os.getpid(), "since": since, "started": psutil.Process().create_time()}
        file.write(json.dumps(own))
        file.flush()
        _held[path] = file.fileno()
        try:
            yield
        finally:
            del _held[path]
            file.truncate(0)
            # A killed run that Prefect was not told of is left to the next run.
            if left in _killed:
                _killed.remove(left)
                file.write(left)
                file.flush()
            fcntl.flock(file, fcntl.LOCK_UN)


def note_flow_run(flow_run: str) -> "list[Holder]":
    """Let the locks that this process holds name its flow run of Prefect; the killed runs that held them before.

    A run that ends in order leaves no name.
    """
    _note("flow_run", flow_run)
    killed = [Holder.named_in(text) for text in _killed]
    _killed.clear()
    return killed


def note_end(state: str) -> None:
    """Let the locks that this process holds name the state in which its run has ended, for the next run to tell it."""
    _note("ended", state)


def _note(key: str, value: str) -> None:
    for path in _held:
        text = path.read_text(encoding="utf-8")
        path.write_text(json.dumps(json.loads(text) | {key: value}), encoding="utf-8")


def killed_runs(folder: Path = Path()) -> "list[Holder]":
    """The last run in a folder, if Prefect knows it, it was killed, and none came after it."""
    try:
        holder = Holder.named_in((folder / LOCK).read_text(encoding="utf-8"))
    except OSError:
        return []
    return [holder] if holder.flow_run and not holder.is_alive() else []


def held_locks() -> list[int]:
    """The descriptors of the locks that this process holds."""
    return list(_held.values())


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Holder:
    """The run that has locked a workspace, as the lock's file names it."""

    description: str
    process: int | None
    """None where the file says nothing."""
    flow_run: str = ""
    """Prefect's id of it, where it has one."""
    ended: str = ""
    """The state in which it has ended, where it could not tell Prefect."""
    started: float | None = None
    """When its process began, seconds since 1970; None where the file does not say."""

    @classmethod
    def named_in(cls, text: str) -> "Holder":
        """The holder that the file's text names."""
        try:
            run = json.loads(text)
            shown = f"the run {run['name']} (process {run['pid']}, since {run['since']})"
            return cls(shown, int(run["pid"]), run.get("flow_run", ""), run.get("ended", ""), run.get("started"))
        except (ValueError, KeyError, TypeError):
            return cls("another run", None)

    def __str__(self) -> str:
        return self.description

    def is_alive(self) -> bool:
        """Whether its process is running; True where that is not known."""
        if self.process is None:
            return True
        try:
            found = psutil.Process(self.process)
            began = found.create_time()
            # The system gives a number anew. It reads the time of a start to a second.
            same = abs(began - (self.started or began)) < START_SLACK_SECONDS
            return bool(same and found.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False


STAGES_AT_ONCE_VARIABLE = "PARROTFLOW_STAGES_AT_ONCE"
RESOURCES_VARIABLE = "PARROTFLOW_RESOURCES"

WAIT_SECONDS = 5.0
"""Between two checks of `given_up` by a stage that waits; `wake` makes it check at once."""


@dataclass
class Slots:
    """Taken with all resources or not at all, so that a stage that waits for a resource blocks no other."""

    stages_at_once: int
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Of the named resources; 1 for those that are not named."""
    _used: Counter[str] = field(default_factory=Counter)
    _running: int = 0
    _waiting: dict[int, Collection[str]] = field(default_factory=dict)
    """The resources of those that wait, by their turns."""
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def taken(self, turn: int, resources: Collection[str], given_up: Callable[[], bool]) -> Iterator[bool]:
        """Hold a slot and the resources while within; False, and hold nothing, once `given_up()`.

        Of those that wait, the one with the lowest turn goes first whose resources are free.
        """
        with self._changed:
            self._waiting[turn] = {*resources}
            while not given_up() and self._next() != turn:
                self._changed.wait(WAIT_SECONDS)
            del self._waiting[turn]
            held = not given_up()
            if held:
                self._running += 1
                self._used.update({*resources})
                self._changed.notify_all()
        try:
            yield held
        finally:
            with self._changed:
                if held:
                    self._running -= 1
                    self._used.subtract({*resources})
                self._changed.notify_all()

    def wake(self) -> None:
        """Let those that wait look whether they are still wanted."""
        with self._changed:
            self._changed.notify_all()

    def _next(self) -> int | None:
        if self._running >= self.stages_at_once:
            return None
        for turn, wanted in sorted(self._waiting.items()):
            if all(self._used[name] < self.capacity.get(name, 1) for name in wanted):
                return turn
        return None


def slots_of_this_machine() -> Slots:
    """By `PARROTFLOW_STAGES_AT_ONCE` (else 2) and `PARROTFLOW_RESOURCES`, e.g. `accelerator=2,memory=1`."""
    capacity: dict[str, int] = {}
    for item in filter(None, os.environ.get(RESOURCES_VARIABLE, "").split(",")):
        name, _, number = item.partition("=")
        capacity[name.strip()] = parsed_whole_number(f"{RESOURCES_VARIABLE}: `{item}`", number)
    return Slots(whole_number(STAGES_AT_ONCE_VARIABLE, 2), capacity)


ACCELERATOR = "accelerator"
"""The resource that stages name in dvc.yaml."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"

_GPU = re.compile(r"\d+|(GPU|MIG)-.+")


def cores() -> int:
    """The cores that the stages may use: those of this process, or fewer where OMP_NUM_THREADS says so."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # OpenMP also takes a list, a number for each level of nesting.
    asked = os.environ.get(THREADS, "").partition(",")[0].strip()
    return min(usable, int(asked)) if asked.isdecimal() and int(asked) else usable


def gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA names them. Without importing torch, which takes seconds.

    As for CUDA, the list ends at the first name that is no GPU's: `-1`, or nothing, means none.
    """
    if VISIBLE in os.environ:
        return list(takewhile(_GPU.fullmatch, map(str.strip, os.environ[VISIBLE].split(","))))
    return [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def machine_name() -> str:
    """The processor with its cores, and how many GPUs."""
    processor, found = next(cpu_facts("model name"), platform.machine()), gpus()
    return ", ".join([processor, f"{cores()} cores", *([f"{len(found)} GPUs"] if found else [])])


@dataclass
class Devices:
    """A share for each stage that may run at once."""

    shares: list[dict[str, str]] = field(default_factory=lambda: shares_of(gpus(), cores()))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def taken(self, resources: Collection[str]) -> Iterator[dict[str, str | None]]:
        """The environment of a stage with these resources, whose share is its own while within."""
        if ACCELERATOR not in resources:
            yield {}
            return
        with self._lock:
            share = self.shares.pop(0)
        try:
            yield {**share}
        finally:
            with self._lock:
                self.shares.append(share)


def shares_of(devices: list[str], cores: int) -> list[dict[str, str]]:
    """What each of the stages that run at once sees; nothing is set where one has the machine for itself."""
    slots = slots_of_this_machine()
    at_once = min(slots.capacity.get(ACCELERATOR, 1), slots.stages_at_once)
    if at_once == 1:
        return [{}]
    if not devices:
        return [{THREADS: str(max(1, cores // at_once))} for _ in range(at_once)]
    each = max(1, len(devices) // at_once)
    starts = [number * each % len(devices) for number in range(at_once)]
    return [{VISIBLE: ",".join(devices[start : start + each])} for start in starts]
