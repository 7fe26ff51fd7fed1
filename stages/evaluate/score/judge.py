"""The verdict on a program, from two sandboxes: the candidate runs in one, the tests in the other.

The verdict is written by the process of the tests, which holds no code of the candidate, into a pipe that the process
of the candidate does not have. The two exchange plain data only (inside/peer.py).
"""

import json
import os
import socket
import time
from contextlib import suppress

from stages.evaluate.score.params import Limits
from stages.evaluate.score.programs import Program
from stages.evaluate.score.sandbox import GRACE_SECONDS, Ended, LostError, Sandbox, readable, refused
from stages.formats.evaluation.verdicts import RESULTS, Outcome
from stages.runtime.entry import UserError

RIGHT = Program(
    code="import subprocess\ndef double(number):\n    return 2 * number\n",
    context="",
    test="def check(candidate):\n    assert candidate(2) == 4\n",
    entry_point="double",
)
"""What every sandbox judges first: the libraries that a candidate imports can be read."""


ATTEMPTS = 2
"""A program whose sandbox is lost is judged once more: the machine may have killed it, for want of memory say."""


EXIT_SECONDS = 2.0
"""How long a candidate that has closed its connection may take to end, before it is ended."""


class Judge:
    """Judges one program after the other; close it at the end."""

    def __init__(self, limits: Limits) -> None:
        """Start the sandboxes, which end with the thread that started them. Raises UserError without bubblewrap."""
        self._limits = limits
        self._sandboxes: list[Sandbox] = []
        self._ready = False
        self._killed = False
        self._open()

    def wait_until_ready(self) -> None:
        """Raises UserError where this machine cannot isolate."""
        if self._ready:
            return
        for sandbox in self._sandboxes:
            sandbox.wait_until_ready()
        self._ready = True
        with suppress(LostError):
            found = self._judge(RIGHT)
            if found == Outcome("passed"):
                return
            if found.result in ("timeout", "memory"):
                named = ", ".join(f"{name} = {value:g}" for name, value in self._limits.model_dump().items())
                raise UserError(f"score.limits ({named}): too low for a program that does nothing: {found.result}")
        raise refused("a program that is right does not pass in the sandbox")

    def judge(self, program: Program) -> Outcome:
        """Run the program's tests. A candidate that loses its sandbox twice fails, and the next one gets a new one.

        Raises LostError after `kill`, and UserError where no new sandbox can be made.
        """
        for _ in range(ATTEMPTS):
            self.wait_until_ready()
            try:
                return self._judge(program)
            except LostError:
                if self._killed:
                    raise
                self.close()
                self._open()
        return Outcome("lost")

    def _judge(self, program: Program) -> Outcome:
        tests, candidate = self._sandboxes
        limits = {
            "wall_seconds": self._limits.wall_seconds,
            "cpu_seconds": self._limits.cpu_seconds,
            "memory_bytes": self._limits.memory_megabytes * 1_000_000,
        }
        job = {"context": program.context, "test": program.test, "entry_point": program.entry_point}
        ours, theirs = socket.socketpair()
        verdict, verdict_end = os.pipe()
        try:
            candidate.start(limits, {"program": program.code}, [theirs.fileno()])
            tests.start(limits, job, [ours.fileno(), verdict_end])
        finally:
            ours.close()
            theirs.close()
            os.close(verdict_end)
        try:
            written = _read_to_end(verdict, self._limits.wall_seconds + GRACE_SECONDS)
        finally:
            os.close(verdict)
        ended = [tests.stop(GRACE_SECONDS)]
        # A process that is killed closes its connection before it counts as ended: it is not to be taken for one that
        # the tests have no more need of.
        ended.append(candidate.stop(GRACE_SECONDS, patience=EXIT_SECONDS if b"died" in written else 0.0))
        if any(one.killed for one in ended):
            raise LostError
        return outcome(written, *ended)

    def _open(self) -> None:
        self._ready = False
        self._sandboxes = [Sandbox(), Sandbox()]

    def kill(self) -> None:
        """Kill both sandboxes, also while another thread judges; only `close` may follow."""
        self._killed = True
        for sandbox in self._sandboxes:
            sandbox.kill()

    def close(self) -> None:
        """End both sandboxes."""
        while self._sandboxes:
            self._sandboxes.pop().close()


def outcome(written: bytes, tests: Ended, candidate: Ended) -> Outcome:
    """What the tests' process has written counts only if that process ended well; else how the two ended."""
    with suppress(ValueError, TypeError):
        result, exception = json.loads(written)
        if tests.exit == 0 and result in RESULTS and not (result == "died" and candidate.timeout):
            return Outcome(result, exception)
    if tests.timeout or candidate.timeout:
        return Outcome("timeout")
    return Outcome("died")


def _read_to_end(pipe: int, seconds: float) -> bytes:
    """All that is written to a pipe until its last writer is gone. Raises LostError after `seconds`."""
    deadline = time.monotonic() + seconds
    content = b""
    while True:
        if not readable(pipe, max(0.0, deadline - time.monotonic())):
            raise LostError
        part = os.read(pipe, 65_536)
        if not part:
            return content
        content += part
