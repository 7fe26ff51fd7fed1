"""Programs that a reproduction starts, and the lock on its folder, which they hold as long as they live."""

import fcntl
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.runtime.entry import EXIT_TERMINATED, UserError

LOCK = "parrotflow-reproduce.lock"
"""Its name is no common one: a folder that has it is one of a reproduction."""

SECRET = re.compile("TOKEN|SECRET|PASSWORD|API_KEY", re.IGNORECASE)
"""In the names of variables."""

OF_THE_HUB = re.compile("^(HF|HUGGING).*TOKEN", re.IGNORECASE)
"""The same, of those of the Hub alone: a DVC remote needs the others."""


@dataclass
class Commands:
    """Starts programs one at a time, and remembers those that a reader of the report may want to repeat."""

    lock: int
    """A descriptor: whoever has it open keeps another reproduction out of the folder."""
    shown: list[str] = field(default_factory=list)

    def run(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], *, show: str) -> int:
        """Run a program to its end, with its output in this terminal; its exit code.

        A signal that asks to end is passed on, and the program's end is waited for: it saves what it has.
        """
        self.shown.append(show)
        process = subprocess.Popen(
            command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, pass_fds=[self.lock]
        )
        asked_to_end = False

        def pass_on(number: int, frame: Any) -> None:
            nonlocal asked_to_end
            asked_to_end = True
            process.send_signal(number)

        before = signal.signal(signal.SIGTERM, pass_on)
        try:
            while True:
                try:
                    code = process.wait()
                    break
                except KeyboardInterrupt:
                    # The terminal has sent it to the program too.
                    process.wait()
                    raise
        finally:
            signal.signal(signal.SIGTERM, before)
        if asked_to_end:
            raise SystemExit(EXIT_TERMINATED)
        return code


def output(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """What a short program prints. Raises UserError with its own last line where it fails."""
    done = run_quietly(command, folder, environment)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        raise UserError(without_credentials(f"{shlex.join(command[:4])} ... in {folder}: {said[-1]}"))
    return done.stdout


def run_quietly(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a short program; what it prints is kept. Unless told otherwise it gets no secrets, and asks for none."""
    own = without_secrets() if environment is None else environment
    return subprocess.run(
        command, cwd=folder, env=dict(own), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def without_credentials(text: str) -> str:
    """A text without the names and passwords in its URLs."""
    return re.sub(r"://[^/\s]+@", "://", text)


def without_secrets(pattern: re.Pattern[str] = SECRET) -> dict[str, str]:
    """This shell's variables without those whose names say that they hold a secret. Git asks for no password."""
    values = {name: value for name, value in os.environ.items() if not pattern.search(name)}
    ssh = values.get("GIT_SSH_COMMAND", "ssh -oBatchMode=yes -oConnectTimeout=30")
    return values | {"GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": ssh}


@contextmanager
def only_reproduction_in(work: Path) -> Iterator[Commands]:
    """The right to work in a folder. Waits while another one, or what a killed one left running, has it.

    Raises UserError where the folder holds something else.
    """
    if work.exists() and not (work / LOCK).exists() and (not work.is_dir() or any(work.iterdir())):
        raise UserError(
            f"{work}: is there, and is no folder of a reproduction; choose a new or an empty one with --folder"
        )
    work.mkdir(parents=True, exist_ok=True)
    lock = os.open(work / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting: a reproduction, or what a killed one left running, still works in {work}", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield Commands(lock)
    finally:
        os.close(lock)
