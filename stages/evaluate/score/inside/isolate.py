"""A process of its own for one run, inside a sandbox that bubblewrap has made: namespaces, limits, no privileges.

bubblewrap's sandbox lasts for many runs; what one run could leave behind for the next goes with the namespaces that
are made here: processes, files (an empty tmpfs on /tmp; all else is read-only), System V and POSIX IPC.
"""

import ctypes
import os
import resource
import signal
import struct

from stages.evaluate.score.inside import seccomp

NOBODY = 65534

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x08000000, 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
CAPABILITY_VERSION_3 = 0x20080522

TMP_BYTES, TMP_FILES = 16_000_000, 1000
FILE_BYTES = 16_000_000
OPEN_FILES = 64
PROCESSES = 64
"""Threads, as seccomp refuses processes."""

libc = ctypes.PyDLL(None, use_errno=True)


def fork_into_namespaces() -> int:
    """Fork; the child is the first process of namespaces of its own. Returns 0 there. Raises OSError."""
    flags = ctypes.c_long(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID | signal.SIGCHLD)
    nothing = ctypes.c_long(0)
    # os.fork() makes no namespaces, and unshare() would need a third process. This one has a single thread, so what
    # Python does around a fork (its locks, its threads) is not needed.
    process: int = libc.syscall(ctypes.c_long(seccomp.this_machine().clone), flags, nothing, nothing, nothing, nothing)
    _require(process < 0, "clone")
    return process


def mount_own_files() -> None:
    """Give the process, in its namespaces, an empty /tmp. Raises OSError."""
    _require(libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "mount")
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC)
    options = f"size={TMP_BYTES},nr_inodes={TMP_FILES},mode=1777".encode()
    _require(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", flags, options), "mount")


def give_up_privileges(cpu_seconds: int, memory_bytes: int) -> None:
    """Set the limits, become nobody without capabilities, and filter system calls. Raises OSError."""
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
    resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES, PROCESSES))
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    _require(libc.capset(header, bytes(24)), "capset")
    seccomp.install(libc)


def _require(result: int, call: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), call)
