"""dvc.lock as data, and the repair of what a kill leaves in DVC's own files.

DVC writes dvc.lock and `.dvc/tmp/rwlock`, its table of which process uses which path, in place, so a kill can leave
them empty or cut off. DVC repairs a dvc.lock that is cut off and still YAML, and drops the entries of dead processes.
The rest is repaired here. Without an empty dvc.lock each stage counts as never run, and what the run-cache holds is
restored; without the table nothing is lost.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.lock import make_lock
from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK
from dvc.utils.serialize import load_yaml

from stages.runtime.entry import UserError

LOCK_FILE = "dvc.lock"
DVC_TMP = Path(".dvc/tmp")


def remedy(error: DvcException) -> str:
    """What to do where DVC cannot read a dvc.lock; empty where its error is about anything else."""
    path = Path(getattr(error, "path", ""))
    if path.name != LOCK_FILE:
        return ""
    return f"; `git checkout {path}` brings the committed one back, and nothing that is in DVC's cache is lost"


def recorded_all(stages: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The entries of stages in dvc.lock, of those that have one, read as DVC does: 1e-08 is a number.

    Raises UserError where dvc.lock cannot be read.
    """
    try:
        entries = (load_yaml(LOCK_FILE) if Path(LOCK_FILE).exists() else {}) or {}
    except DvcException as error:
        raise UserError(f"dvc: {error}{remedy(error)}") from None
    found = entries.get("stages") or {}
    return {stage: found[stage] for stage in stages if stage in found}


def repair_after_kill(folder: Path = Path()) -> list[str]:
    """Remove an empty dvc.lock and a table that is not JSON; a line for each that was removed."""
    repaired = []
    # Under DVC's own locks: a living process may just be writing the file.
    if _removed(folder, Path(LOCK_FILE), "lock", is_empty):
        repaired.append("dvc.lock was emptied by a kill: removed; results that are in DVC's cache are restored")
    if _removed(folder, DVC_TMP / RWLOCK_FILE, RWLOCK_LOCK, is_torn):
        repaired.append("DVC's table of locks was cut off by a kill or a power failure: removed, nothing is lost")
    return repaired


def _removed(folder: Path, name: Path, guard: str, is_damaged: Any) -> bool:
    file, tmp = folder / name, folder / DVC_TMP
    if not is_damaged(file):
        return False
    tmp.mkdir(parents=True, exist_ok=True)
    with make_lock(str(tmp / guard), tmp_dir=str(tmp), wait=True):
        damaged: bool = is_damaged(file)
        if damaged:
            file.unlink()
    return damaged


def is_empty(file: Path) -> bool:
    """Whether a file is there, without content."""
    return file.is_file() and not file.stat().st_size


def is_torn(table: Path = DVC_TMP / RWLOCK_FILE) -> bool:
    """Whether DVC could not read its table."""
    try:
        json.loads(table.read_bytes())
    except FileNotFoundError:
        return False
    except ValueError:
        return True
    return False
