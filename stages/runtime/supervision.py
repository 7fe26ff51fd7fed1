"""Workers end with the command that started them, and tell it how they ended.

Launchers between the two (accelerate, torch elastic) pass on neither signals nor exit codes, and a killed launcher
leaves its workers running: they would write into the next run's checkpoints. So the command holds a file lock for as
long as it lives, and each worker waits for that lock in a thread: the kernel releases it however the command ends, and
the worker ends too. A second lock tells the command when no worker is left.
"""

import atexit
import fcntl
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

from stages.runtime.errors import STATE_DIR

VMSTAT = Path("/proc/vmstat")

VARIABLE = "PARROTFLOW_SUPERVISION"
"""The folder of the locks; set by the command for its workers."""

ALIVE, WORKERS, STOP, FAILED, STOPPABLE = "alive", "workers", "stop", "failed", "stoppable"
STARTED, ENDED, FAILURE = "started", "ended", "failure"

SAVING = "saving"
"""In `STATE_DIR`: its time is that of the last sign that a training saves its state."""

WORKER_GRACE_SECONDS = 60.0
"""How long the command waits for workers to notice that it has ended."""


class Supervision:
    """The command's end: hold it while workers run."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="parrotflow-"))
        (self.folder / WORKERS).touch()
        self._alive = _locked(self.folder / ALIVE, fcntl.LOCK_EX)

    def outcome(self) -> int | None:
        """The exit code of the first worker that failed on purpose, or 0 if all of them succeeded.

        None if a worker died, even if the others succeeded.
        """
        with suppress(FileNotFoundError):
            return int((self.folder / FAILURE).readlink().name)
        ended = len(list(self.folder.glob(f"{ENDED}-*")))
        return 0 if ended and ended == len(list(self.folder.glob(f"{STARTED}-*"))) else None

    def ask_to_stop(self) -> None:
        """Ask the workers to save and exit. A file, not a signal: a launcher that gets a signal kills its workers."""
        (self.folder / STOP).touch()

    def started(self) -> bool:
        """Whether a worker ever ran."""
        return any(self.folder.glob(f"{STARTED}-*"))

    def can_be_asked(self) -> bool:
        """Whether a worker looks for `ask_to_stop`; before that there is nothing to save."""
        return (self.folder / STOPPABLE).exists()

    def has_workers(self) -> bool:
        """Whether a worker is still running."""
        with (self.folder / WORKERS).open() as workers:
            try:
                fcntl.flock(workers, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def close(self) -> None:
        """End every remaining worker, wait until they are gone, and remove the folder."""
        self._alive.close()
        deadline = time.monotonic() + WORKER_GRACE_SECONDS
        while self.has_workers() and time.monotonic() < deadline:
            time.sleep(0.05)
        shutil.rmtree(self.folder, ignore_errors=True)


def follow_command() -> None:
    """The worker's end: from now on this process ends when the command does. Without a command nothing happens."""
    if folder := os.environ.get(VARIABLE):
        held = _locked(Path(folder) / WORKERS, fcntl.LOCK_SH)
        (Path(folder) / f"{STARTED}-{os.getpid()}").touch()
        threading.Thread(target=_end_with_command, args=(Path(folder), held), daemon=True).start()


def _end_with_command(folder: Path, held: IO[str]) -> None:
    _locked(folder / ALIVE, fcntl.LOCK_SH)
    os._exit(1)


def _locked(path: Path, how: int) -> IO[str]:
    file = path.open("a", encoding="utf-8")
    fcntl.flock(file, how)
    return file


def look_for_stop() -> None:
    """Tell the command that this worker looks for its request to stop from now on."""
    if folder := os.environ.get(VARIABLE):
        (Path(folder) / STOPPABLE).touch()


def stop_is_requested() -> bool:
    """Whether the command asked its workers to stop."""
    folder = os.environ.get(VARIABLE)
    return folder is not None and (Path(folder) / STOP).exists()


def is_first_to_fail() -> bool:
    """Whether no other worker of this machine failed before: all have the same message."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return True
    try:
        (Path(folder) / FAILED).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def leave(code: int) -> NoReturn:
    """End a worker with a result for the command; launchers in between see success.

    As Python ends: other threads' work is waited for, functions registered with `atexit` run. But nothing is freed.
    Python would free the process groups and wait, holding its lock, for gloo's threads, which need that lock to free
    the tensors of their last exchange (torch 2.13: `~Reducer`, `~ProcessGroupGloo`): on a busy machine, one run in
    twenty never ended.
    """
    if folder := os.environ.get(VARIABLE):
        if code:
            # Only the first one is made, whoever else fails then; a link needs no room on a full disk.
            with suppress(FileExistsError):
                (Path(folder) / FAILURE).symlink_to(str(code))
        (Path(folder) / f"{ENDED}-{os.getpid()}").touch()
        code = 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def report_saving() -> None:
    """Tell whoever asked this run to stop that its state is still being saved."""
    with suppress(OSError):
        STATE_DIR.mkdir(exist_ok=True)
        (STATE_DIR / SAVING).touch()


def seconds_since_saving(project: Path = Path()) -> float:
    """Seconds since the last `report_saving` in a project; infinite if there was none."""
    with suppress(OSError):
        return time.time() - (project / STATE_DIR / SAVING).stat().st_mtime
    return math.inf


def memory_kills() -> int:
    """How many processes Linux has killed for lack of memory so far; 0 if it does not count them."""
    if not VMSTAT.exists():
        return 0
    lines = (line.split() for line in VMSTAT.read_text(encoding="utf-8").splitlines())
    return next((int(value) for name, value in lines if name == "oom_kill"), 0)


def describe_kill(for_memory: bool) -> str:
    """Why a process died without an error message, and what to do."""
    if not for_memory:
        return "was killed (SIGKILL) from outside; run the same command to continue"
    return (
        "was killed because the memory ran out; give it more, run fewer cells of a sweep at once, or lower "
        "PARROTFLOW_WORKERS (data stages) or PARROTFLOW_MICRO_BATCH (training); run the same command to continue"
    )
