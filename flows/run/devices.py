"""The GPUs, or without any the cores, divided among the stages that run at once and need the accelerator.

`PARROTFLOW_RESOURCES=accelerator=4 PARROTFLOW_STAGES_AT_ONCE=4` lets four of them run at once; each then sees a quarter
of the GPUs.
"""

import contextlib
import os
import re
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from flows.run.slots import slots_of_this_machine

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


@dataclass
class Devices:
    """A share for each stage that may run at once."""

    shares: list[dict[str, str]] = field(default_factory=lambda: shares_of(gpus(), cores()))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
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
