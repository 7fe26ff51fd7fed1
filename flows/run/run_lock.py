"""One run at a time in a workspace: the second waits, or is refused with the first one's name.

The lock is the kernel's (flock), so it ends with the processes that hold it, however they end. The commands of a run's
stages inherit it: one that outlives a killed run still keeps the workspace locked. A run that ends by itself releases
the lock, whatever its stages have left in the background. The text in the file only names the holder.
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
    """Lock a workspace; within a lock that this process already holds, do nothing.

    Raises UserError that names the run which holds it, unless `wait`.
    """
    path = (folder / LOCK).absolute()
    if path in _held:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    ignored = path.with_name(".gitignore")
    if not ignored.exists():
        ignored.write_text("*\n", encoding="utf-8")
    with path.open("a+", encoding="utf-8") as file:
        while not _locked(file.fileno()):
            file.seek(0)
            holder = _describe(file.read())
            if not wait:
                raise UserError(f"{holder} is using this folder; wait for it (--wait), or end it")
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


def _describe(text: str) -> str:
    try:
        holder = json.loads(text)
        return f"the run {holder['name']} (process {holder['pid']}, since {holder['since']})"
    except (ValueError, KeyError):
        return "another run"
