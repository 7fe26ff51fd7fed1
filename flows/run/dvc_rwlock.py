"""Mends what a kill or a power failure at the wrong instant leaves of DVC's table of locks.

DVC writes `.dvc/tmp/rwlock` in place, so it may be found empty or cut off; DVC then refuses every command. The table
tells which living process holds which path, and a process that died holds none: without it nothing is lost. DVC knows
that of processes that are gone, but not of those whose end nobody has asked about yet (zombies; in a container whose
first process asks about none, they stay).
"""

import json
from pathlib import Path
from typing import Any

import psutil
from dvc.lock import make_lock
from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK

DVC_TMP = Path(".dvc/tmp")


def is_torn(folder: Path = Path()) -> bool:
    """Whether DVC could not read its table."""
    try:
        json.loads((folder / DVC_TMP / RWLOCK_FILE).read_bytes())
    except FileNotFoundError:
        return False
    except ValueError:
        return True
    return False


def mend_torn_lock(folder: Path = Path()) -> bool:
    """Remove the table where it is torn, under the lock that DVC writes it under; whether it was."""
    if not is_torn(folder):
        return False
    tmp = folder / DVC_TMP
    with make_lock(str(tmp / RWLOCK_LOCK), tmp_dir=str(tmp), wait=True):
        # A process that lives may just have been writing it.
        torn = is_torn(folder)
        if torn:
            (tmp / RWLOCK_FILE).unlink()
    return torn


def forget_zombies(folder: Path = Path()) -> None:
    """Take out of DVC's table what processes hold that have ended and are only still listed."""
    file, tmp = folder / DVC_TMP / RWLOCK_FILE, folder / DVC_TMP
    if not file.exists():
        return
    with make_lock(str(tmp / RWLOCK_LOCK), tmp_dir=str(tmp), wait=True):
        table: dict[str, dict[str, Any]] = json.loads(file.read_bytes())
        readers = {path: [one for one in held if not is_zombie(one)] for path, held in table.get("read", {}).items()}
        writers = {path: holder for path, holder in table.get("write", {}).items() if not is_zombie(holder)}
        kept = {"read": {path: held for path, held in readers.items() if held}, "write": writers}
        kept = {mode: paths for mode, paths in kept.items() if paths}
        if kept != table:
            file.write_text(json.dumps(kept), encoding="utf-8")


def is_zombie(holder: dict[str, Any]) -> bool:
    """Whether the process of an entry has ended, and its parent has not asked how."""
    try:
        return bool(psutil.Process(int(holder["pid"])).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False  # DVC takes it out, and says so.
