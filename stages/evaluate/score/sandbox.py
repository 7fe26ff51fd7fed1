"""A sandbox by bubblewrap, in which a server forks a process for each run (inside/server.py).

Available inside: what mounts.py lists, read-only, and the folder inside/. No network, no home, no environment, no
/proc, no device but /dev/null, and nothing writable but a small tmpfs.
"""

import json
import os
import select
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.evaluate.score import mounts
from stages.runtime.entry import UserError

SERVER = "stages.evaluate.score.inside.server"
INSIDE = Path(__file__).parent / "inside"

LEVEL = "bubblewrap+rlimits+seccomp"
"""How a candidate is isolated; a machine that cannot do all of it is refused."""

NOBODY = "65534"
START_SECONDS = 60
CLOSE_SECONDS = 5
GRACE_SECONDS = 30
"""Seconds after the wall limit. The sandbox enforces the limit itself; one that does not answer by then is lost."""


class LostError(Exception):
    """The sandbox does not answer."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the process of a run ended."""

    exit: int
    """Its exit status, or minus the signal."""
    timeout: bool
    """It used up its wall-clock or processor time."""
    killed: bool = False
    """It was killed from outside the sandbox, for want of memory say, or by a limit on time that it set itself."""


class Sandbox:
    """One sandbox; one run at a time."""

    def __init__(self) -> None:
        """Start it. The kernel ends it with the thread that started it. Raises UserError without bubblewrap."""
        program = shutil.which("bwrap")
        if program is None:
            raise refused("bubblewrap (`bwrap`) is not installed")
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [program, *options()],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                # A terminal sends Ctrl-C to all processes of a session: a sandbox would end, and with it a verdict.
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Raises UserError where this machine cannot isolate."""
        if self._receive(START_SECONDS) != b"ready":
            self._process.kill()
            said = self._process.communicate()[1].decode(errors="replace").strip().splitlines()
            raise refused(said[-1] if said else "it did not start")

    def start(self, limits: Mapping[str, float], job: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Begin a run with its limits and job; the descriptors are the process's, in the order that it expects."""
        file = os.memfd_create("job")
        try:
            os.write(file, json.dumps(job).encode())
            os.lseek(file, 0, os.SEEK_SET)
            socket.send_fds(self._control, [json.dumps(limits).encode()], [file, *descriptors])
        except OSError as error:
            raise LostError from error
        finally:
            os.close(file)

    def stop(self, seconds: float, patience: float = 0.0) -> Ended:
        """End the run if it has not ended after `patience`, and say how it ended. Raises LostError after `seconds`.

        Both in seconds.
        """
        if not (patience and readable(self._control.fileno(), patience)):
            with suppress(OSError):
                self._control.send(b"end")
        ended = self._receive(seconds)
        if not ended:
            raise LostError
        return Ended(**json.loads(ended))

    def _receive(self, seconds: float) -> bytes:
        try:
            return self._control.recv(65_536) if readable(self._control.fileno(), seconds) else b""
        except OSError:
            return b""

    def kill(self) -> None:
        """Kill it, with all that runs in it."""
        self._process.kill()

    def close(self) -> None:
        """End it, with all that runs in it."""
        self._control.close()  # at which the server ends
        try:
            self._process.communicate(timeout=CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def readable(descriptor: int, seconds: float) -> bool:
    """Wait for at most `seconds` until the descriptor can be read or its other end is closed."""
    waiting = select.poll()  # select() takes no descriptor above 1023
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def refused(reason: str) -> UserError:
    """The error for a machine that cannot isolate."""
    return UserError(
        f"score.run_generated_code = true, but generated code cannot be isolated here: {reason.rstrip('.')}. Install "
        "bubblewrap (`apt-get install bubblewrap`) on Linux and allow it to make namespaces (docs/evaluation.md says "
        "how in a container), or set it to false: generated code never runs without isolation"
    )


def options() -> list[str]:
    """bubblewrap's options, and the command that it runs.

    Root keeps its ids, so that the server can become the user `nobody`, whose processes the kernel limits; any other
    user gets a user namespace. The capabilities are those that the server needs to isolate its runs from each other; in
    a user namespace they count for nothing outside.
    """
    root = os.getuid() == 0
    user = [] if root else ["--unshare-user", "--uid", NOBODY, "--gid", NOBODY]
    capabilities = ["CAP_SYS_ADMIN", *(["CAP_SETUID", "CAP_SETGID", "CAP_KILL"] if root else [])]
    code = f"/code/{SERVER.rpartition('.')[0].replace('.', '/')}"
    shown = mounts.shown()
    # Parent folders that bubblewrap creates on its own could be entered by root only.
    above = [str(folder) for path in (*shown, Path(code)) for folder in reversed(path.parents[:-1])]
    return [
        *user,
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *("--hostname", "sandbox"),
        *("--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
        *(word for name in capabilities for word in ("--cap-add", name)),
        *(word for folder in dict.fromkeys([*above, "/dev"]) for word in ("--dir", folder)),
        *(word for path in map(str, shown) for word in ("--ro-bind", path, path)),
        *(word for path in map(str, mounts.hidden(shown)) for word in ("--tmpfs", path, "--remount-ro", path)),
        *("--ro-bind", str(INSIDE), code),
        *("--dev-bind", "/dev/null", "/dev/null", "--dir", "/tmp", "--remount-ro", "/"),
        # The order of sets of strings depends on the seed, and so may a candidate's result.
        *("--setenv", "PYTHONHASHSEED", "0"),
        *(str(mounts.python()), "-s", "-S", "-P", "-B", "-X", "utf8", "-c"),
        f"import sys; sys.path.insert(0, '/code'); from {SERVER} import main; main()",
    ]
