"""DVC started before it is needed: importing it takes longer than most of what it does for a stage.

`python -m flows.run.warm_dvc` imports it and waits at its standard input, a socket, for its arguments (a JSON list) and
the workspace's lock. Where that is closed instead, nobody needs it and it leaves: a run that is killed leaves none
behind.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from flows.run.run_lock import handed_down

Process = subprocess.Popen[bytes]

MOST_BYTES, MOST_LOCKS = 65_536, 16
"""Of one command."""


@dataclass(frozen=True)
class Waiting:
    """A process that has DVC imported, or is about to, and waits for a command."""

    process: Process
    line: socket.socket


class WarmDvc:
    """Processes that have DVC imported, each for one command."""

    def __init__(self) -> None:
        self._ready: list[Waiting] = []
        self._lock = threading.Lock()

    def keep_ready(self, count: int) -> None:
        """Start what lacks until so many are ready, or about to be."""
        with self._lock:
            while len(self._ready) < count:
                ours, theirs = socket.socketpair()
                with theirs:
                    process = start([sys.executable, "-m", "flows.run.warm_dvc"], stdin=theirs.fileno())
                self._ready.append(Waiting(process, ours))

    def start(self, arguments: Sequence[str]) -> Process:
        """Run `dvc ARGUMENTS` in one of them, or in a new process."""
        with self._lock:
            warm = self._ready.pop(0) if self._ready else None
        if warm is not None:
            try:
                with warm.line:
                    socket.send_fds(warm.line, [json.dumps(arguments).encode()], handed_down())
            except OSError:
                # It was killed while it waited.
                warm.process.communicate()
            else:
                return warm.process
        return start([sys.executable, "-m", "dvc", *arguments], locks=handed_down())

    def close(self) -> None:
        """Let those go that were not needed."""
        with self._lock:
            unneeded, self._ready = self._ready, []
        for warm in unneeded:
            warm.line.close()
        for warm in unneeded:
            warm.process.communicate()


def start(command: Sequence[str], stdin: int = subprocess.DEVNULL, locks: Sequence[int] = ()) -> Process:
    """Start a command in a session of its own, its output to be read."""
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=locks,
    )


def main() -> None:
    """Import what `dvc repro` needs, wait for the arguments, be `dvc`."""
    import dvc.commands.repro
    import dvc.repo.reproduce
    import dvc.stage.cache
    import dvc.stage.run  # noqa: F401
    from dvc.cli import main as dvc_main

    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as line:
        # The locks stay open as long as this process lives.
        arguments, _, _, _ = socket.recv_fds(line, MOST_BYTES, MOST_LOCKS)
    if arguments:
        with open(os.devnull) as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), sys.stdin.fileno())
        sys.argv = ["dvc", *json.loads(arguments)]
        sys.exit(dvc_main(sys.argv[1:]))


if __name__ == "__main__":
    main()
