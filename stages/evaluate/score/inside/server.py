"""The server in a sandbox: forks a process for each run, so that no run pays for the start of Python and its imports.

Requests come over the socket on standard input, a datagram each, with descriptors: a file with the job, the connection
to the other process, and for the tests a pipe for the verdict. A request without descriptors ends the run. The answer
says how the run's process ended. This process runs nothing of a candidate, and reads nothing that one has written.
"""

import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import time
from contextlib import suppress
from typing import Any

from stages.evaluate.score.inside import candidate, check, isolate, seccomp

PRELOADED = [
    *("bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools"),
    *("hashlib", "heapq", "itertools", "math", "operator", "queue", "random", "re", "statistics", "string", "typing"),
]
"""What candidates import most; each has its own copy, as a fork has."""

MAX_REQUEST_BYTES = 65_536


def main() -> None:
    """Serve until the other end of standard input is closed."""
    control = socket.socket(fileno=os.dup(0))
    seccomp.this_machine()
    empty = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(empty, standard)
    for name in PRELOADED:
        importlib.import_module(name)
    os.environ.clear()
    gc.freeze()  # a collection in a fork would copy every page of what is loaded
    control.send(b"ready")
    os.dup2(empty, 2)
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 4)
        if not request:
            return
        if not descriptors:
            continue  # the end of a run that had ended by itself
        ended = supervise(json.loads(request), descriptors, control)
        control.send(json.dumps(ended).encode())


def supervise(limits: dict[str, Any], descriptors: list[int], control: socket.socket) -> dict[str, Any]:
    """Run one job in a process of its own, which is dead afterwards, and with it all that it has started."""
    began = time.monotonic()
    process = isolate.fork_into_namespaces()
    if process == 0:
        run(limits, descriptors, control)
    for descriptor in descriptors:
        os.close(descriptor)
    waiting = select.poll()
    handle = os.pidfd_open(process)
    waiting.register(handle, select.POLLIN)
    waiting.register(control, select.POLLIN)
    had_ended = handle in dict(waiting.poll(limits["wall_seconds"] * 1000))
    os.kill(process, signal.SIGKILL)  # the first process of its namespace: the kernel kills all others
    os.close(handle)
    _, status, usage = os.wait4(process, 0)
    late = time.monotonic() - began >= limits["wall_seconds"]
    exit_code = os.waitstatus_to_exitcode(status)
    spent = killed_at_its_cpu_limit(exit_code, usage.ru_utime + usage.ru_stime, limits["cpu_seconds"])
    # Nothing inside can send SIGKILL to the first process of a namespace.
    killed = had_ended and exit_code == -signal.SIGKILL and not late and not spent
    return {"exit": exit_code, "timeout": late or spent, "killed": killed}


def killed_at_its_cpu_limit(exit_code: int, cpu_seconds: float, limit: float) -> bool:
    """Whether the kernel ended a process for its CPU time, where it reports `cpu_seconds` for it.

    A process cannot send this signal to the first process of its namespace, so only the kernel and this server do. The
    kernel's limit counts timer ticks, its report what was really run: on a busy virtual machine the report is lower.
    """
    return exit_code == -signal.SIGKILL and cpu_seconds >= limit / 2


def run(limits: dict[str, Any], descriptors: list[int], control: socket.socket) -> None:
    """What the run's process does; it does not return."""
    code = 1
    try:
        control.close()
        with os.fdopen(descriptors[0], "rb") as file:
            job = json.loads(file.read())
        for descriptor in range(3, 256):
            if descriptor not in descriptors[1:]:
                with suppress(OSError):
                    os.close(descriptor)
        random.seed(0)  # so that a candidate without a seed has the same verdict again
        isolate.mount_own_files()
        isolate.give_up_privileges(limits["cpu_seconds"], limits["memory_bytes"])
        os.chdir("/tmp")
        connection = socket.socket(fileno=descriptors[1])
        if "program" in job:
            candidate.run_candidate(job["program"], connection)
        else:
            result = check.check(job["context"], job["test"], job["entry_point"], connection)
            os.write(descriptors[2], json.dumps(result).encode())
        code = 0
    finally:
        os._exit(code)
