"""dvc.lock: read, edited, and in the order in which `dvc repro` would have written it.

DVC updates the entry of a stage in its place and appends a new one. Stages that run side by side finish in any order,
so a new entry is placed before those of the same run that `dvc repro` would have written later.

Before a run, what a kill leaves in DVC's own files is repaired. DVC writes dvc.lock and `.dvc/tmp/rwlock` in place, so
a kill can leave them empty or cut off; DVC then refuses every command. The table says which living process holds which
path, and a process that died holds none: without it nothing is lost. DVC drops the entries of processes that are gone,
but not of zombies: processes that have ended and whose parent has not read their exit status (in a container whose
first process reads none, they stay), nor where another process was given the number since, as after a power failure.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from dvc.exceptions import DvcException
from dvc.lock import make_lock
from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK
from dvc.utils.serialize import load_yaml
from pydantic import BaseModel, TypeAdapter

from stages.runtime.atomic import atomic_write
from stages.runtime.entry import STATE_DIR, UserError

LOCK_FILE = "dvc.lock"
HEAD = "stages:\n"
ORDER = STATE_DIR / "lock_order.json"


class RunOrder(BaseModel):
    """Where the run that works in a project, or worked there last, places entries in one dvc.lock."""

    stages: list[str]
    """In the order in which `dvc repro` runs them."""
    settled: list[str]
    """Entries that were there when the run started: they stay where they are."""

    def entered(self, entries: Sequence[str]) -> list[str]:
        """Of the entries those that the run has made, in their order."""
        return [name for name in self.stages if name in entries and name not in self.settled]

    def position(self, name: str, entries: Sequence[str]) -> int:
        """The index at which a new entry belongs."""
        if name not in self.stages:
            return len(entries)
        later = set(self.stages[self.stages.index(name) + 1 :]).difference(self.settled)
        return next((index for index, other in enumerate(entries) if other in later), len(entries))


_ORDERS = TypeAdapter(dict[str, RunOrder])


def lock_file_of(dvc_file: Path) -> Path:
    """Each dvc.yaml has a dvc.lock of its own in its folder."""
    return dvc_file.with_name(LOCK_FILE)


def located(stage: str) -> tuple[Path, str]:
    """The dvc.yaml that a stage is in and its name there: `more/dvc.yaml:copy`, or just `copy` of the root's."""
    file, _, name = stage.rpartition("dvc.yaml:")
    return Path(f"{file}dvc.yaml"), name


def remedy(error: DvcException) -> str:
    """What to do where DVC cannot read a dvc.lock; empty where its error is about anything else."""
    path = Path(getattr(error, "path", ""))
    if path.name != LOCK_FILE:
        return ""
    return f"; `git checkout {path}` brings the committed one back, and nothing that is in DVC's cache is lost"


def remove_empty_lock_files(folder: Path = Path()) -> list[Path]:
    """Remove each dvc.lock that is empty, and return them.

    Plain `dvc repro` writes it in place, so a kill can leave it empty; DVC then refuses every command. Without it each
    stage counts as never run, and what DVC's run-cache holds is restored.
    """
    empty = [file for file in _lock_files(folder) if _is_empty(file)]
    if not empty:
        return []
    with guard(folder, "lock"):
        # A living process may just have been writing it.
        empty = [file for file in empty if _is_empty(file)]
        for file in empty:
            file.unlink()
    return empty


def _lock_files(folder: Path) -> list[Path]:
    """Each dvc.lock of a project. DVC takes none that git ignores, so git need not look into folders of data."""
    pattern = f":(glob)**/{LOCK_FILE}"
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", pattern]
    try:
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):  # no git, or no repository of it
        return [*folder.glob(LOCK_FILE), *folder.glob(f"*/{LOCK_FILE}")]
    return [folder / name for name in found.split("\0")[:-1]]


def _is_empty(file: Path) -> bool:
    return file.is_file() and not file.stat().st_size


def recorded_all(stages: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The entries of stages in dvc.lock, of those that have one, read as DVC does: 1e-08 is a number.

    Raises UserError where a dvc.lock cannot be read.
    """
    contents: dict[Path, dict[str, dict[str, Any]]] = {}
    found: dict[str, dict[str, Any]] = {}
    for stage in stages:
        dvc_file, name = located(stage)
        if dvc_file not in contents:
            file = lock_file_of(dvc_file)
            try:
                contents[dvc_file] = ((load_yaml(str(file)) if file.exists() else {}) or {}).get("stages") or {}
            except DvcException as error:
                raise UserError(f"dvc: {error}{remedy(error)}") from None
        if entry := contents[dvc_file].get(name):
            found[stage] = entry
    return found


def keep_order(stages: Sequence[str], folder: Path = Path()) -> None:
    """At the start of a run in a project, note where the entries of its stages belong.

    `stages`: those of the plan, in the order in which `dvc repro` runs them.

    After a kill or a failure, the entries behind the first missing one are still placed as of that run: `dvc repro`
    would not have written them yet.
    """
    before, now = read_orders(folder), dict[str, RunOrder]()
    for dvc_file in sorted({located(stage)[0] for stage in stages}):
        lock_file = lock_file_of(dvc_file)
        written = folder / lock_file
        entries = list(blocks_of(written.read_text(encoding="utf-8"))[1]) if written.exists() else []
        unsettled: list[str] = []
        if earlier := before.get(str(lock_file)):
            entered = earlier.entered(entries)
            pending = [name for name in earlier.stages if name not in earlier.settled]
            count = next((index for index, name in enumerate(pending) if name not in entries), len(pending))
            # Anything else means that the file was replaced since.
            unsettled = entered[count:] if entries[len(entries) - len(entered) :] == entered else []
        names = [located(stage)[1] for stage in stages if located(stage)[0] == dvc_file]
        now[str(lock_file)] = RunOrder(stages=names, settled=[name for name in entries if name not in unsettled])
    atomic_write(folder / ORDER, json.dumps({path: order.model_dump() for path, order in now.items()}))


def place_new(lock_file: Path, entries: Any) -> None:
    """Of the entries that DVC is about to write, put the new ones where `dvc repro` would have them."""
    order = read_orders().get(os.path.relpath(lock_file))
    if order is None or not lock_file.exists():
        return
    there = blocks_of(lock_file.read_text(encoding="utf-8"))[1]
    for name in [name for name in entries if name not in there]:
        position = order.position(name, list(entries))
        if position < len(entries):
            entries.insert(position, name, entries.pop(name))


def read_orders(folder: Path = Path()) -> dict[str, RunOrder]:
    """What the last run in a project noted for each dvc.lock."""
    try:
        return _ORDERS.validate_json((folder / ORDER).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}


def blocks_of(text: str) -> tuple[str, dict[str, str], str]:
    """The text up to the stages, each stage's own lines, and what comes after them, such as DVC's `datasets`."""
    start = text.index(HEAD) + len(HEAD) if HEAD in text else len(text)
    blocks: dict[str, str] = {}
    name = ""
    lines = text[start:].splitlines(keepends=True)
    end = next((index for index, line in enumerate(lines) if line[0].isalpha()), len(lines))
    for line in lines[:end]:
        if line.startswith("  ") and line[2:3] not in " -#:\n":  # which may end there, cut off
            # A name above 128 letters is written as `? NAME`, with what it has behind a `:` in the next line.
            name = line.strip().removeprefix("? ").removesuffix(":").strip("'\"")
            blocks.pop(name, None)  # one that is there twice counts where it is last
            blocks[name] = ""
        if name:
            blocks[name] += line
    return text[:start], blocks, "".join(lines[end:])


DVC_TMP = Path(".dvc/tmp")
RWLOCK = DVC_TMP / RWLOCK_FILE
"""DVC's table of which living process reads or writes which path."""


@contextmanager
def guard(folder: Path, name: str) -> Iterator[None]:
    """A lock of DVC's: `RWLOCK_LOCK`, under which it changes its table, or `lock`, under which it writes dvc.lock."""
    tmp = folder / DVC_TMP
    tmp.mkdir(parents=True, exist_ok=True)
    with make_lock(str(tmp / name), tmp_dir=str(tmp), wait=True):
        yield


def repair_after_kill(folder: Path = Path()) -> list[str]:
    """Repair a project's table of locks and dvc.lock; a line for each repair that a user should know of."""
    repaired = []
    if remove_torn_table(folder):
        repaired.append("DVC's table of locks was cut off by a kill or a power failure: removed, nothing is lost")
    repaired += [
        f"{emptied} was emptied by a kill: removed; results that are in DVC's cache are restored"
        for emptied in remove_empty_lock_files(folder)
    ]
    forget_dead(folder)
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
    with guard(folder, RWLOCK_LOCK):
        # A living process may just have been writing it.
        torn = is_torn(folder)
        if torn:
            (folder / RWLOCK).unlink()
    return torn


def forget_dead(folder: Path = Path()) -> None:
    """Take out of DVC's table what zombies hold, and processes whose number is another's by now."""
    file = folder / RWLOCK
    if not file.exists():
        return
    with guard(folder, RWLOCK_LOCK):
        table: dict[str, dict[str, Any]] = json.loads(file.read_bytes())
        dead = partial(is_dead, written=file.stat().st_mtime)
        readers = {path: [one for one in held if not dead(one)] for path, held in table.get("read", {}).items()}
        writers = {path: holder for path, holder in table.get("write", {}).items() if not dead(holder)}
        kept = {"read": {path: held for path, held in readers.items() if held}, "write": writers}
        kept = {mode: paths for mode, paths in kept.items() if paths}
        if kept != table:
            file.write_text(json.dumps(kept), encoding="utf-8")


def is_dead(holder: dict[str, Any], written: float) -> bool:
    """Whether the process of an entry in a table that was written then has ended, which DVC does not see."""
    try:
        process = psutil.Process(int(holder["pid"]))
        # It is another process of that number, if it began afterwards. The system reads that time to a second.
        return bool(process.create_time() > written + 2.0 or process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False  # DVC drops it, and says so.
