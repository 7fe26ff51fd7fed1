"""One run at a time in a workspace: a second run is refused with the name of the first one, or waits.

The lock is the kernel's (flock), so it ends with the run, even after a kill. No stage inherits it. The text in the file
only names the holder.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from stages.runtime.errors import STATE_DIR, UserError, private_state_dir

RUN_LOCK = STATE_DIR / "run.lock"

print_at_once = partial(print, flush=True)

_held: set[Path] = set()


@contextmanager
def run_lock(
    name: str, *, wait: bool = False, folder: Path = Path(), say: Callable[[str], None] = print_at_once
) -> Iterator[None]:
    """Lock a workspace, unless this process already holds the lock.

    If another run holds it: with `wait`, `say` its name and wait, else raise a UserError with the name.
    """
    path = (folder / RUN_LOCK).resolve()
    if path in _held:
        yield
        return
    private_state_dir(folder)
    with path.open("a+", encoding="utf-8") as file:
        if not _locked(file.fileno()):
            file.seek(0)
            holder = file.read() or "another run"
            if not wait:
                remedy = "wait for it (--wait), or stop it: Ctrl-C in its terminal, or `kill` its process"
                raise UserError(f"{holder} is using this folder; {remedy}")
            say(f"{holder} is using this folder; waiting for it to finish ...")
            while not _locked(file.fileno()):
                time.sleep(0.5)
        file.truncate(0)
        file.write(f"the run {name} (process {os.getpid()}, since {datetime.now(UTC).isoformat('T', 'seconds')})")
        file.flush()
        _held.add(path)
        try:
            yield
        finally:
            _held.remove(path)
            file.truncate(0)
            fcntl.flock(file, fcntl.LOCK_UN)


def lock_holder() -> str:
    """Return the description of the run that holds this folder's lock; empty if none does."""
    if not RUN_LOCK.is_file():
        return ""
    with RUN_LOCK.open(encoding="utf-8") as file:
        if not _locked(file.fileno()):
            return file.read()
    return ""


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
