"""Jobs as processes of this machine: each is `dvc repro` in a clone, and sees its share of the GPUs or cores.

Run as a module, this is such a process, with a pipe of the sweep as its standard input. It ends with the sweep, however
the sweep ends: the pipe is then closed, and the stage's program gets SIGTERM and saves.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from flows.dvc_repo import fetch_run_cache, in_order_of_repro, open_repo
from flows.environment import dvc_state_within
from flows.run.outcome import KILLED, TRANSIENT, named
from flows.run.programs import group_lives, last_error, redactor, signal_group, stage_environment
from flows.run.stage import GRACE_SECONDS, KILL_SECONDS, end_after, exit_code_in, repro_stage
from flows.sweep.jobs import Ended, Job, Progress, carry_out
from stages.runtime.errors import STATE_DIR, UserError
from stages.runtime.supervision import seconds_since_saving

if TYPE_CHECKING:
    from flows.experiments.cells import Cell

LOG = STATE_DIR / "sweep.log"
"""In a clone: what its stages printed."""

LINES_KEPT = 200
"""The last lines of a stage's output, which say why it failed."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"

_RUNNING = re.compile(r"Running stage '(.+)':")
_COUNT = re.compile(r"(\d[\d,]*)\s*(?:/|of)\s*(\d[\d,]*)")
_FAILED = re.compile(r"ERROR: failed to reproduce '(.+?)'")
_GPU = re.compile(r"\d+|(GPU|MIG)-.+")


@dataclass
class Processes:
    """Starts jobs, as many at once as there are shares, and in a clone one at a time."""

    folders: Mapping[str, Path]
    """The project folder in each cell's clone."""
    shares: list[dict[str, str]]
    progress: Progress
    pull: bool = False
    """Whether missing results come from the DVC remote."""
    at_work: list["Process"] = field(default_factory=list)

    def start(self, job: Job) -> "Process | None":
        """Start a job; None if its clone is in use or no share is free."""
        folder = self.folders[job.cells[0]]
        self.at_work = [work for work in self.at_work if not work.has_ended]
        if any(work.folder == folder for work in self.at_work) or not self.shares:
            return None
        work = Process(job, folder, self.shares.pop(0), self)
        self.at_work.append(work)
        return work


class Process:
    """A job at work. It leads a process group, which `stop` ends as a whole."""

    def __init__(self, job: Job, folder: Path, share: dict[str, str], owner: Processes) -> None:
        self.job, self.folder, self.share, self.owner = job, folder, share, owner
        self.has_ended = False
        self._kill_at: float | None = None
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._rest = b""
        variables = stage_environment(job.targets) | dvc_state_within(folder) | share
        # -P: the clone's own `flows` must not be taken for the project's.
        command = [sys.executable, "-P", "-m", __name__, *(["--pull"] if owner.pull else []), *job.targets]
        with (folder / LOG).open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._log = (folder / LOG).open("rb")

    def poll(self) -> Ended | None:
        """How it ended; None while it works."""
        code, group = self._process.poll(), self._process.pid
        self._follow()
        left = code is not None and group_lives(group)
        if left and self._kill_at is None:
            self.stop()
        late = 0.0
        if self._kill_at is not None:
            late = min(time.monotonic() - self._kill_at, seconds_since_saving(self.folder) - GRACE_SECONDS)
        if late > 0:
            signal_group(group, signal.SIGKILL)
        if (code is None or left) and late < KILL_SECONDS:
            return None
        code = -signal.SIGKILL if code is None else code
        self._log.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.owner.shares.append(self.share)
        self.has_ended = True
        return Ended("finished") if code == 0 else why_it_failed(list(self._lines), code)

    def stop(self) -> None:
        """Ask for the end of its group: training saves. What is left after `GRACE_SECONDS` is killed."""
        self._kill_at = time.monotonic() + GRACE_SECONDS
        signal_group(self._process.pid, signal.SIGTERM)

    def _follow(self) -> None:
        """Take the lines that were printed since; of a progress bar each state is one."""
        *whole, self._rest = re.split(rb"[\r\n]+", self._rest + self._log.read())
        for line in whole:
            text = line.decode("utf-8", "replace")
            self._lines.append(text)
            if found := _RUNNING.fullmatch(text):
                self.owner.progress.stage(self.job, found.group(1))
            elif text.startswith("warning: "):
                self.owner.progress.say(self.job, text)
            elif count := _COUNT.search(text):
                self.owner.progress.counted(self.job, f"{count.group(1)} of {count.group(2)}")


def run_one(cell: "Cell", targets: Sequence[str], folder: Path) -> Ended:
    """Run the targets of one cell in its clone; missing results come from the DVC remote. Raises StoppedError."""
    ended: list[Ended] = []

    def note(_: Job, how: Ended) -> Ended:
        ended.append(how)
        return how

    with Progress(cell.name, {cell.id: cell}) as progress:
        start = Processes({cell.id: folder}, [{}], progress, pull=True).start
        carry_out([Job("", (cell.id,), tuple(targets))], start, note, progress)
    return ended[0]


def why_it_failed(lines: Sequence[str], code: int) -> Ended:
    """Why `dvc repro` failed, from what it printed last: the stage's own last error, else DVC's.

    A failure is cancelled if it may pass: the stage was killed, or what it needed did not answer.
    """
    at = next((number for number in reversed(range(len(lines))) if lines[number].startswith("ERROR: ")), len(lines))
    said = "\n".join(lines[at:]).partition("\n\n")[0]
    stage, exited = _FAILED.search(said), exit_code_in(said)
    stage_code = code if exited is None else exited
    own = [line for line in lines[:at] if line.strip()]
    message = (
        last_error(own) if stage and exited is not None else said.removeprefix("ERROR: ") or f"dvc exited with {code}"
    )
    if stage_code in KILLED:
        message = "was killed (SIGKILL); if the memory ran out, run fewer cells at once"
    may_pass = stage_code in TRANSIENT + KILLED
    text = redactor()(named(stage.group(1), message) if stage else message)
    return Ended("cancelled" if may_pass else "failed", text)


def shares_of(at_once: int, devices: list[str], cores: int) -> list[dict[str, str]]:
    """The variables that give each concurrent job its share of the machine; empty for a single job."""
    if at_once == 1:
        return [{}]
    if not devices:
        return [{THREADS: str(max(1, cores // at_once))} for _ in range(at_once)]
    each = max(1, len(devices) // at_once)
    starts = [number * each % len(devices) for number in range(at_once)]
    return [{VISIBLE: ",".join(devices[start : start + each])} for start in starts]


def cores() -> int:
    """The cores that jobs may use: those of this process, or fewer where OMP_NUM_THREADS says so."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # OpenMP also takes a list, a number for each level of nesting.
    asked = os.environ.get(THREADS, "").partition(",")[0].strip()
    return min(usable, int(asked)) if asked.isdecimal() and int(asked) else usable


def gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA names them. Without importing torch, which takes seconds.

    As for CUDA, the list ends at the first name that is no GPU's: `-1`, or nothing, means none.
    """
    if VISIBLE in os.environ:
        return list(takewhile(_GPU.fullmatch, map(str.strip, os.environ[VISIBLE].split(","))))
    return [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def main(targets: Sequence[str], *, pull: bool) -> int:
    """`dvc repro`; its exit code. With `pull`, results that the DVC remote has are restored."""
    from dvc.cli import main as dvc_main

    if not pull:
        return int(dvc_main(["--wait-for-lock", "repro", *targets]))
    try:
        fetch_run_cache()
        with open_repo() as repo:
            stages = {stage for target in targets for stage in repo.stage.collect(target, with_deps=True)}
            names = [stage.addressing for stage in in_order_of_repro(stages, repo.index.graph)]
        return next((code for name in names if (code := repro_stage(name, pull=True))), 0)
    except UserError as error:
        print(f"ERROR: {error}", flush=True)
        return error.exit_code


if __name__ == "__main__":
    pipe = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    end_after(lambda: os.read(pipe, 1))  # nothing is ever written
    exit_code = main([word for word in sys.argv[1:] if word != "--pull"], pull="--pull" in sys.argv)
    sys.stdout.flush()
    os._exit(exit_code)
