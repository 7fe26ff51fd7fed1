"""How many stages run at once, which never together, and the GPUs, or without any the cores, divided among them.

`PARROTFLOW_RESOURCES=accelerator=4 PARROTFLOW_STAGES_AT_ONCE=4` lets four stages run at once that need the accelerator;
each then sees a quarter of the GPUs.
"""

import os
import platform
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from stages.runtime.entry import parsed_whole_number, whole_number
from stages.runtime.workers import cpu_facts

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
        return next((turn for turn, wanted in sorted(self._waiting.items()) if self._are_free(wanted)), None)

    def _are_free(self, resources: Collection[str]) -> bool:
        return all(self._used[name] < self.capacity.get(name, 1) for name in resources)


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
