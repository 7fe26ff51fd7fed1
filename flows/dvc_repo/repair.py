"""Repairs, before a run, what a kill leaves in DVC's own files.

DVC writes `.dvc/tmp/rwlock` in place, so a kill can leave it empty or cut off; DVC then refuses every command. It says
which living process holds which path, and a process that died holds none: without it nothing is lost. DVC drops the
entries of processes that are gone, but not of zombies: processes that have ended and whose parent has not read their
exit status (in a container whose first process reads none, they stay).
"""

import json
from pathlib import Path
from typing import Any

import psutil

from flows.dvc_repo.internals import RWLOCK, rwlock_guard
from flows.dvc_repo.lock_file import remove_empty_lock_files


def repair_after_kill(folder: Path = Path()) -> list[str]:
    """Repair a project's table of locks and dvc.lock; a line for each repair that a user should know of."""
    repaired = []
    if remove_torn_table(folder):
        repaired.append("DVC's table of locks was cut off by a kill or a power failure: removed, nothing is lost")
    repaired += [
        f"{emptied} was emptied by a kill: removed; results that are in DVC's cache are restored"
        for emptied in remove_empty_lock_files(folder)
    ]
    forget_zombies(folder)
    return repaired


def is_torn(folder: Path = Path()) -> bool:
    """Whether DVC could not read its table."""
    try:
        json.loads((folder / RWLOCK).read_bytes())
    except FileNotFoundError:
        return False
    except ValueError:
        return True
    return False


def remove_torn_table(folder: Path = Path()) -> bool:
    """Remove the table where it is cut off; whether it was."""
    if not is_torn(folder):
        return False
    with rwlock_guard(folder):
        # A living process may just have been writing it.
        torn = is_torn(folder)
        if torn:
            (folder / RWLOCK).unlink()
    return torn


def forget_zombies(folder: Path = Path()) -> None:
    """Take out of DVC's table what zombies hold."""
    file = folder / RWLOCK
    if not file.exists():
        return
    with rwlock_guard(folder):
        table: dict[str, dict[str, Any]] = json.loads(file.read_bytes())
        readers = {path: [one for one in held if not is_zombie(one)] for path, held in table.get("read", {}).items()}
        writers = {path: holder for path, holder in table.get("write", {}).items() if not is_zombie(holder)}
        kept = {"read": {path: held for path, held in readers.items() if held}, "write": writers}
        kept = {mode: paths for mode, paths in kept.items() if paths}
        if kept != table:
            file.write_text(json.dumps(kept), encoding="utf-8")


def is_zombie(holder: dict[str, Any]) -> bool:
    """Whether the process of an entry has ended and its parent has not read its exit status."""
    try:
        return bool(psutil.Process(int(holder["pid"])).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False  # DVC drops it, and says so.
