"""One run at a time in a workspace: the second waits, or is refused with the first one's name.

The lock is the kernel's (flock), so it ends with the processes that hold it, however they end. The commands of a run's
stages inherit it: one that outlives a killed run still keeps the workspace locked. A run that ends by itself releases
the lock, whatever its stages have left in the background. The text in the file only names the holder.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psutil

from stages.runtime.entry import UserError

LOCK = Path(".parrotflow/run.lock")

print_at_once = partial(print, flush=True)

ENDING_SECONDS = 120.0
"""How long the next run waits for the stage of one that was killed: it saves what it has, and ends by itself."""

_KILLED = "was killed; waiting until its stage has saved and ended"

_held: dict[Path, int] = {}

_killed: list[str] = []
"""What the locks said of killed runs that this process has taken over."""


@contextmanager
def run_lock(
    name: str,
    *,
    wait: bool = False,
    folder: Path = Path(),
    say: Callable[[str], None] = print_at_once,
) -> Iterator[None]:
    """Lock a workspace; within a lock that this process already holds, do nothing.

    Raises UserError that names the run which holds it, unless `wait`: then `say` is told for whom this one waits.
    Where that run was killed, its stage is given time to end.
    """
    path = (folder / LOCK).resolve()
    if path in _held:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    ignored = path.with_name(".gitignore")
    if not ignored.exists():
        ignored.write_text("*\n", encoding="utf-8")
    with path.open("a+", encoding="utf-8") as file:
        noted, deadline = False, time.monotonic() + ENDING_SECONDS
        while not _locked(file.fileno()):
            file.seek(0)
            holder = Holder.named_in(file.read())
            if not wait and (holder.is_alive() or time.monotonic() > deadline):
                stage = "" if holder.is_alive() else "the stage of "
                raise UserError(f"{stage}{holder} is using this folder; wait for it (--wait), or end it")
            if not noted:
                ending = "is using this folder; waiting for its end" if holder.is_alive() else _KILLED
                say(f"{holder} {ending} ...")
                noted = True
            time.sleep(0.5)
        file.seek(0)
        left = file.read()
        if Holder.named_in(left).flow_run:
            _killed.append(left)
        file.truncate(0)
        file.write(json.dumps({"name": name, "pid": os.getpid(), "since": datetime.now(UTC).isoformat("T", "seconds")}))
        file.flush()
        _held[path] = file.fileno()
        try:
            yield
        finally:
            del _held[path]
            file.truncate(0)
            # A killed run that Prefect was not told of is left to the next run.
            if left in _killed:
                _killed.remove(left)
                file.write(left)
                file.flush()
            fcntl.flock(file, fcntl.LOCK_UN)


def note_flow_run(flow_run: str) -> list[str]:
    """Let the locks that this process holds name its flow run of Prefect; those of killed runs that held them before.

    A run that ends in order leaves no name.
    """
    for path in _held:
        text = path.read_text(encoding="utf-8")
        path.write_text(json.dumps(json.loads(text) | {"flow_run": flow_run}), encoding="utf-8")
    killed = [Holder.named_in(text).flow_run for text in _killed]
    _killed.clear()
    return killed


def killed_run(folder: Path = Path()) -> str:
    """The flow run of the last run in a folder, if that was killed and none came after it; else nothing."""
    try:
        holder = Holder.named_in((folder / LOCK).read_text(encoding="utf-8"))
    except OSError:
        return ""
    return "" if holder.is_alive() else holder.flow_run


def held_locks() -> list[int]:
    """The descriptors of the locks that this process holds."""
    return list(_held.values())


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Holder:
    """The run that has locked a workspace, as the lock's file names it."""

    description: str
    process: int | None
    """None where the file says nothing."""
    flow_run: str = ""
    """Prefect's id of it, where it has one."""

    @classmethod
    def named_in(cls, text: str) -> "Holder":
        """The holder that the file's text names."""
        try:
            run = json.loads(text)
            shown = f"the run {run['name']} (process {run['pid']}, since {run['since']})"
            return cls(shown, int(run["pid"]), run.get("flow_run", ""))
        except (ValueError, KeyError, TypeError):
            return cls("another run", None)

    def __str__(self) -> str:
        return self.description

    def is_alive(self) -> bool:
        """Whether its process is running; True where that is not known."""
        try:
            return self.process is None or psutil.Process(self.process).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
