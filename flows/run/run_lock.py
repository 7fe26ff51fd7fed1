"""One run at a time in a workspace: the second waits, or is refused with the first one's name.

The lock is the kernel's (flock): it goes with the processes that hold it, however they end. A run hands it down to its
stages, so that one which outlives a killed run is waited for too. What stands in the file only tells who it is.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from stages.runtime.entry import UserError

LOCK = Path(".parrotflow/run.lock")

_held: dict[Path, int] = {}


@contextmanager
def run_lock(name: str, *, wait: bool = False, folder: Path = Path()) -> Iterator[None]:
    """Hold a workspace; what this process holds already, it holds on. Raises UserError that names the run which holds
    it, unless `wait`.
    """
    path = (folder / LOCK).absolute()
    if path in _held:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        while not _locked(file.fileno()):
            file.seek(0)
            holder = _describe(file.read())
            if not wait:
                raise UserError(f"{holder} works in this folder; wait for it (--wait), or end it")
            time.sleep(0.5)
        file.truncate(0)
        file.write(json.dumps({"name": name, "pid": os.getpid(), "since": datetime.now(UTC).isoformat("T", "seconds")}))
        file.flush()
        _held[path] = file.fileno()
        try:
            yield
        finally:
            del _held[path]
            file.truncate(0)


def handed_down() -> list[int]:
    """The descriptors of the locks that this process holds, for its children."""
    return list(_held.values())


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _describe(text: str) -> str:
    try:
        holder = json.loads(text)
        return f"the run {holder['name']} (process {holder['pid']}, since {holder['since']})"
    except (ValueError, KeyError):
        return "another run"
