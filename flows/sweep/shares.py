"""Shares of this machine for jobs that run at the same time."""

import os
import re
from itertools import takewhile
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"

_GPU = re.compile(r"\d+|(GPU|MIG)-.+")


def shares_of(at_once: int, devices: list[str], cores: int) -> list[dict[str, str]]:
    """The variables that give each concurrent job its share of the machine; empty for a single job."""
    if at_once == 1:
        return [{}]
    if not devices:
        return [{THREADS: str(max(1, cores // at_once))} for _ in range(at_once)]
    each = max(1, len(devices) // at_once)
    starts = [number * each % len(devices) for number in range(at_once)]
    return [{VISIBLE: ",".join(devices[start : start + each])} for start in starts]


def cores() -> int:
    """The cores that jobs may use: those of this process, or fewer where OMP_NUM_THREADS says so."""
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
