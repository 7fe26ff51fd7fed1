"""Wait for another process. No test sets a limit: `--timeout` in pyproject.toml ends one that hangs."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import psutil

T = TypeVar("T")


def wait_until(happened: Callable[[], T]) -> T:
    """Return the first true value of `happened()`."""
    while not (value := happened()):
        time.sleep(0.05)
    return value


def wait_until_ended(processes: Iterable[psutil.Process]) -> None:
    """Wait for the end of processes that may have other parents; a zombie has ended."""
    for process in processes:
        wait_until(partial(_has_ended, process))


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
