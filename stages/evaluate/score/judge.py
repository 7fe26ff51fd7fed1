"""The verdict on a program, which runs in a sandbox: bubblewrap, and in it a server that forks (inside/server.py)."""

import json
import socket
import subprocess

from stages.evaluate.score import bubblewrap
from stages.evaluate.score.params import Limits
from stages.formats.evaluation.verdicts import Outcome
from stages.runtime.entry import UserError

RIGHT = "import subprocess\ndef double(number):\n    return 2 * number\nassert double(2) == 4\n"
"""What every sandbox judges first: the libraries that a candidate imports can be read."""

ATTEMPTS = 2
"""A program that is lost is judged once more: the machine may have killed it, for want of memory say."""

CLOSE_SECONDS = 5
GRACE_SECONDS = 60
"""Seconds after the wall limit, for the start too. The sandbox enforces the limit; one that is later still is lost."""


class Judge:
    """Judges one program after the other; close it at the end."""

    _ready: bool
    _process: subprocess.Popen[bytes]

    def __init__(self, limits: Limits) -> None:
        """Start the sandbox, which ends with the thread that started it. Raises UserError without bubblewrap."""
        self._limits = limits
        self._killed = False
        self._open()

    def wait_until_ready(self) -> None:
        """Raises UserError where this machine cannot isolate."""
        if self._ready:
            return
        found = self._answer(RIGHT)
        if found.result in ("timeout", "memory"):
            named = ", ".join(f"{name} = {value:g}" for name, value in self._limits.model_dump().items())
            raise UserError(f"score.limits ({named}): too low for a program that does nothing: {found.result}")
        if found.result == "lost":
            self._process.kill()
            said = self._process.communicate()[1].decode(errors="replace").strip().splitlines()
            raise bubblewrap.refused(said[-1] if said else "it did not start")
        if found.result != "passed":
            raise bubblewrap.refused("a program that is right does not pass in the sandbox")
        self._ready = True

    def judge(self, program: str) -> Outcome:
        """Run a program, in a new sandbox if it was lost. Raises UserError where no new sandbox can be made."""
        for _ in range(ATTEMPTS):
            self.wait_until_ready()
            found = self._answer(program)
            if found.result != "lost" or self._killed:
                break
            self.close()
            self._open()
        return found

    def _answer(self, program: str) -> Outcome:
        job = json.dumps({"program": program, **self._limits.model_dump()})
        try:
            self._control.settimeout(self._limits.wall_seconds + GRACE_SECONDS)
            self._control.sendall(f"{job}\n".encode())
            answer = self._answers.readline()
        except OSError:
            answer = b""
        return Outcome(*json.loads(answer)) if answer.endswith(b"\n") else Outcome("lost")

    def _open(self) -> None:
        self._ready = False
        command = bubblewrap.command()
        self._control, theirs = socket.socketpair()
        self._answers = self._control.makefile("rb")
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                # A terminal sends Ctrl-C to all processes of a session: a sandbox would end, and with it a verdict.
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the sandbox, also while another thread judges, whose outcome says nothing; only `close` may follow."""
        self._killed = True
        self._process.kill()

    def close(self) -> None:
        """End the sandbox, with all that runs in it."""
        self._answers.close()
        self._control.close()  # at which the server ends
        try:
            self._process.communicate(timeout=CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
