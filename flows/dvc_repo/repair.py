"""Repairs, before a run, what a kill leaves in DVC's own files.

DVC writes `.dvc/tmp/rwlock` in place, so a kill can leave it empty or cut off; DVC then refuses every command. It says
which living process holds which path, and a process that died holds none: without it nothing is lost. DVC drops the
entries of processes that are gone, but not of zombies: processes that have ended and whose parent has not read their
exit status (in a container whose first process reads none, they stay).
"""

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from flows.dvc_repo.internals import RWLOCK, is_valid_lock_file, locked_repo, rwlock_guard
from flows.dvc_repo.lock_file import HEAD, blocks_of, remove_empty_lock_files
from stages.runtime.atomic import atomic_write

SCHEMA = "schema: '2.0'\n"
"""How a dvc.lock begins."""


@dataclass
class LockFileWatch:
    """Mends a dvc.lock that something else (a sync program, an editor, a full disk) cuts off while stages run.

    DVC would enter the next stage into what is left, and refuse the file at the next command.
    """

    seen: dict[Path, str] = field(default_factory=dict)
    """The text of each dvc.lock when it was last whole; the first one is taken for that, since DVC has read it."""

    def look(self, lock_file: Path, *, locked: bool = True) -> bool:
        """Remember a dvc.lock, or mend it by what it held before; whether it was mended.

        Without `locked`, DVC's lock is taken for that. One that was never seen whole is left to DVC, which refuses it.
        """
        lock_file = lock_file.resolve()
        before = self.seen.get(lock_file)
        if before is None or not is_cut_off(lock_file, before):
            with suppress(UnicodeDecodeError):
                self.seen[lock_file] = lock_file.read_text(encoding="utf-8") if lock_file.exists() else ""
            return False
        if before and not is_valid_lock_file(before):
            return False
        held: AbstractContextManager[object] = nullcontext() if locked else locked_repo()
        with held:
            if cut := is_cut_off(lock_file, before):
                text = lock_file.read_text(encoding="utf-8", errors="replace")
                self.seen[lock_file] = SCHEMA + HEAD + "".join(mended_blocks(before, text))
                atomic_write(lock_file, self.seen[lock_file])
        return cut

    def look_at_all(self, lock_files: Iterable[Path], say: Callable[[str], None]) -> None:
        """Look at each, and say which was mended."""
        for lock_file in lock_files:
            if self.look(lock_file, locked=False):
                say(f"{lock_file} was cut off by another program while stages ran: mended by what it held before")


def is_cut_off(lock_file: Path, whole: str) -> bool:
    """Whether DVC would refuse a dvc.lock; `whole` is a text that it would not, whose entries are not read again."""
    try:
        text = lock_file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return False  # each stage counts as never run
    except UnicodeDecodeError:
        return True
    (head, blocks), (known_head, known) = blocks_of(text), blocks_of(whole)
    if not blocks or head != known_head or head + "".join(blocks.values()) != text:
        return text != whole and not is_valid_lock_file(text)
    changed = [block for name, block in blocks.items() if known.get(name) != block]
    return not all(is_valid_lock_file(SCHEMA + HEAD + block) for block in changed)


def mended_blocks(before: str, now: str) -> list[str]:
    """The entries of a dvc.lock that was cut off: those that are whole, the others as they were before.

    The last one may be cut off where nothing shows it.
    """
    known, found = blocks_of(before)[1], blocks_of(now)[1]
    whole = [name for name in list(found)[:-1] if is_valid_lock_file(SCHEMA + HEAD + found[name])]
    return list((known | {name: found[name] for name in whole}).values())


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
