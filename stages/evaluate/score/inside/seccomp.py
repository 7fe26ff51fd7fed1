"""The system calls that a candidate cannot make: a seccomp filter (seccomp(2)), in addition to namespaces and limits.

What it adds: no new process and no other program can be started (threads can), so limits on one process are limits on
the candidate; no memory outside RLIMIT_AS (memfd, System V); and the large interfaces through which kernels have been
broken out of (bpf, io_uring, userfaultfd, perf, keyrings, mounts, namespaces, any socket that is not a Unix one).
"""

import ctypes
import errno
import os
import struct
import sys
from dataclasses import dataclass

DENIED = {
    # name: number on (x86_64, aarch64), of asm/unistd_64.h and asm-generic/unistd.h; None: not there
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "fanotify_init": (300, 262),
    "personality": (135, 92),
    "modify_ldt": (154, None),
}


@dataclass(frozen=True)
class Machine:
    """What differs between kinds of processors."""

    column: int
    """Index of its numbers in DENIED."""
    architecture: int
    """AUDIT_ARCH of linux/audit.h."""
    clone: int
    socket: int


MACHINES = {"x86_64": Machine(0, 0xC000003E, 56, 41), "aarch64": Machine(1, 0xC00000B7, 220, 198)}


def this_machine() -> Machine:
    """Raises OSError where system calls have other numbers than those known here."""
    name = os.uname().machine
    if name not in MACHINES or sys.maxsize < 2**32:
        raise OSError(errno.ENOSYS, f"system calls of {name} are not known to the sandbox")
    return MACHINES[name]


CLONE3 = 435
CLONE_THREAD = 0x00010000
AF_UNIX = 1
X32_BIT = 0x40000000

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF instructions: load a word of seccomp_data, jump if equal, if at least, if a bit is set; return."""

NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
"""Offsets in struct seccomp_data."""

ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2


def filter_program() -> bytes:
    """The filter as instructions of classic BPF (linux/filter.h): code, jump if true, jump if false, value."""
    machine = this_machine()
    numbers = sorted(number for row in DENIED.values() if (number := row[machine.column]) is not None)
    refuse, allow = FAIL | errno.EPERM, ALLOW
    program = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, machine.architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32_BIT),  # the same calls under other numbers
        (RETURN, 0, 0, refuse),
        (EQUAL, 0, 1, CLONE3),  # a filter cannot see its flags; glibc falls back to clone
        (RETURN, 0, 0, FAIL | errno.ENOSYS),
        (EQUAL, 0, 4, machine.clone),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (ANY_BIT, 1, 0, CLONE_THREAD),
        (RETURN, 0, 0, refuse),
        (RETURN, 0, 0, allow),
        (EQUAL, 0, 4, machine.socket),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (EQUAL, 1, 0, AF_UNIX),
        (RETURN, 0, 0, refuse),
        (RETURN, 0, 0, allow),
    ]
    for number in numbers:
        program += [(EQUAL, 0, 1, number), (RETURN, 0, 0, refuse)]
    program.append((RETURN, 0, 0, allow))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def install(libc: ctypes.PyDLL) -> None:
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
