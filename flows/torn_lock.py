"""Mends what a kill or a power failure at the wrong instant leaves of DVC's table of locks.

DVC writes `.dvc/tmp/rwlock` in place, so it may be found empty or cut off; DVC then refuses every command. The table
tells which living process holds which path, and a process that died holds none: without it nothing is lost.
"""

import json
from pathlib import Path

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
    with make_lock(str(tmp / RWLOCK_LOCK), tmp_dir=str(tmp)):
        # A process that lives may just have been writing it.
        torn = is_torn(folder)
        if torn:
            (tmp / RWLOCK_FILE).unlink()
    return torn
