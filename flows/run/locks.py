"""Who waits for whom: one run at a time in a workspace; of its stages some at once, and some never together.

The second run waits, or is refused with the first one's name.

The lock is the kernel's (flock), so it ends with the run, however that ends. No stage inherits it: a stage ends with
its run (`flows.run.dvc_server`), and what it leaves in the background blocks no run. The text in the file only names
the holder.

`PARROTFLOW_RESOURCES=accelerator=4 PARROTFLOW_STAGES_AT_ONCE=4` lets four stages run at once that need the accelerator;
each then sees a quarter of the GPUs, or without any of the cores.
"""

import fcntl
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

from stages.runtime.entry import UserError, parsed_whole_number, whole_number
from stages.runtime.workers import cpu_facts

LOCK = Path(".parrotflow/run.lock")

print_at_once = partial(print, flush=True)

_held: dict[Path, int] = {}


@contextmanager
def run_lock(
    name: str, *, wait: bool = False, folder: Path = Path(), say: Callable[[str], None] = print_at_once
) -> Iterator[None]:
    """Lock a workspace; within a lock that this process already holds, do nothing.

    If another run holds it, raise a UserError that names this run, or with `wait` say its name and wait.
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
        said = False
        while not _locked(file.fileno()):
            file.seek(0)
            holder = file.read() or "another run"
            if not wait:
                raise UserError(f"{holder} is using this folder; wait for it (--wait), or end it")
            if not said:
                say(f"{holder} is using this folder; waiting for its end ...")
                said = True
            time.sleep(0.5)
        file.truncate(0)
        file.write(f"the run {name} (process {os.getpid()}, since {datetime.now(UTC).isoformat('T', 'seconds')})")
        file.flush()
        _held[path] = file.fileno()
        try:
            yield
        finally:
            del _held[path]
            file.truncate(0)
            fcntl.flock(file, fcntl.LOCK_UN)


def held_locks() -> list[int]:
    """The descriptors of the locks that this process holds."""
    return list(_held.values())


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
