"""Ends workers with the command that started them, and reports to it how they ended.

Launchers between the two (accelerate, torch elastic) pass on neither signals nor exit codes, and a killed launcher
leaves its workers running, which would write to the next run's checkpoints. So the command holds a file lock while it
lives, and a thread in each worker waits for that lock. The kernel releases it however the command ends, and the worker
exits. A second lock tells the command when no worker is left.
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
"""A file in `STATE_DIR`, touched while a training saves its state."""

WORKER_GRACE_SECONDS = 60.0
"""How long the command waits at its end for workers to exit."""


class Supervision:
    """The command's side; it must exist while workers run."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="parrotflow-"))
        (self.folder / WORKERS).touch()
        self._alive = _locked(self.folder / ALIVE, fcntl.LOCK_EX)

    def outcome(self) -> int | None:
        """The exit code of the first worker that reported a failure, 0 if all succeeded, None if a worker died."""
        with suppress(FileNotFoundError):
            return int((self.folder / FAILURE).readlink().name)
        ended = len(list(self.folder.glob(f"{ENDED}-*")))
        return 0 if ended and ended == len(list(self.folder.glob(f"{STARTED}-*"))) else None

    def ask_to_stop(self) -> None:
        """Ask the workers to save and exit, by a file, because a launcher that gets a signal kills its workers."""
        (self.folder / STOP).touch()

    def started(self) -> bool:
        """True if a worker has ever run."""
        return any(self.folder.glob(f"{STARTED}-*"))

    def can_be_asked(self) -> bool:
        """True if a worker polls for `ask_to_stop`; before that there is nothing to save."""
        return (self.folder / STOPPABLE).exists()

    def has_workers(self) -> bool:
        """True if a worker is still running."""
        with (self.folder / WORKERS).open() as workers:
            try:
                fcntl.flock(workers, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def close(self) -> None:
        """End every remaining worker, wait for them, and remove the folder."""
        self._alive.close()
        deadline = time.monotonic() + WORKER_GRACE_SECONDS
        while self.has_workers() and time.monotonic() < deadline:
            time.sleep(0.05)
        shutil.rmtree(self.folder, ignore_errors=True)


def follow_command() -> None:
    """The worker's side: from now on this process ends when the command does, if there is one."""
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
    """Tell the command that this worker polls `stop_is_requested` from now on."""
    if folder := os.environ.get(VARIABLE):
        (Path(folder) / STOPPABLE).touch()


def stop_is_requested() -> bool:
    """True if the command asked its workers to stop."""
    folder = os.environ.get(VARIABLE)
    return folder is not None and (Path(folder) / STOP).exists()


def is_first_to_fail() -> bool:
    """True if no other worker of this machine has failed, so that only one prints their common message."""
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

    Like Python's exit, this waits for threads and runs `atexit` functions, but it frees nothing. Python would free the
    process groups and wait, holding the GIL, for gloo's threads, which need the GIL to free the tensors of their last
    exchange (torch 2.13: `~Reducer`, `~ProcessGroupGloo`). On a busy machine one run in twenty hung.
    """
    if folder := os.environ.get(VARIABLE):
        if code:
            # Only the first worker's link is created; a link needs no space on a full disk.
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
    """Signal that a stopping run is still saving its state."""
    with suppress(OSError):
        STATE_DIR.mkdir(exist_ok=True)
        (STATE_DIR / SAVING).touch()


def seconds_since_saving(project: Path = Path()) -> float:
    """Seconds since the last `report_saving` in a project; infinite if there was none."""
    with suppress(OSError):
        return time.time() - (project / STATE_DIR / SAVING).stat().st_mtime
    return math.inf


def memory_kills() -> int:
    """The number of processes that Linux has killed for lack of memory; 0 if it is unknown."""
    if not VMSTAT.exists():
        return 0
    lines = (line.split() for line in VMSTAT.read_text(encoding="utf-8").splitlines())
    return next((int(value) for name, value in lines if name == "oom_kill"), 0)


def describe_kill(for_memory: bool) -> str:
    """Why a process was killed, and what to do."""
    if not for_memory:
        return "was killed (SIGKILL) from outside; run the same command to continue"
    return (
        "was killed because the memory ran out; give it more, run fewer cells of a sweep at once, or lower "
        "PARROTFLOW_WORKERS (data stages) or PARROTFLOW_MICRO_BATCH (training); run the same command to continue"
    )
