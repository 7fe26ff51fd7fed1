"""The filter of system calls that bubblewrap installs before a program starts (seccomp(2)).

In addition to namespaces and limits it denies: new processes (threads are allowed), so that a process's limits apply to
the whole candidate; memory outside RLIMIT_AS (memfd, System V); large interfaces through which kernels have been
attacked (bpf, io_uring, userfaultfd, perf, keyrings, mounts, namespaces, sockets other than Unix ones); and calls newer
than those listed here. exec is allowed, with the same limits and filter: bubblewrap starts Python with it.
"""

import errno
import os
import struct
import sys

Numbers = dict[str, tuple[int | None, int | None]]
"""System call -> its number on x86_64 and on aarch64 (asm/unistd_64.h, asm-generic/unistd.h); None if it has none."""

PROCESSES: Numbers = {"fork": (57, None), "vfork": (58, None)}
OTHER_ARCHITECTURES: Numbers = {
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272)},
    **{"pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "process_madvise": (440, 440)},
    **{"process_mrelease": (448, 448), "move_pages": (279, 239), "migrate_pages": (256, 238)},
}
"""Calls that act on another process."""
NAMESPACES: Numbers = {"unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41)}
MOUNTS: Numbers = {
    **{"mount": (165, 40), "umount2": (166, 39), "open_tree": (428, 428), "move_mount": (429, 429)},
    **{"fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433)},
    **{"mount_setattr": (442, 442), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265)},
    **{"quotactl": (179, 60), "quotactl_fd": (443, 443), "fanotify_init": (300, 262)},
}
MEMORY: Numbers = {
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "semget": (64, 190)},
    **{"msgget": (68, 186), "mq_open": (240, 180)},
}
"""Calls that allocate memory that no limit counts."""
KERNEL: Numbers = {
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280)},
    **{"perf_event_open": (298, 241), "userfaultfd": (323, 282), "personality": (135, 92), "modify_ldt": (154, None)},
    **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},
    **{"syslog": (103, 116), "init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104)},
}
DENIED: Numbers = {**PROCESSES, **OTHER_ARCHITECTURES, **NAMESPACES, **MOUNTS, **MEMORY, **KERNEL}

NEWER = 451
"""The first unlisted number, of Linux 6.5, on every processor. Newer calls (statmount, listmount, open_tree_attr,
file_setattr, listns) fail as on an older kernel; Python does not need them."""


ARGUMENTS: Numbers = {"clone": (56, 220), "socket": (41, 198), "socketpair": (53, 199)}
"""Denied for some first arguments."""

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column in `Numbers` and the AUDIT_ARCH (linux/audit.h) of each architecture."""


def this_machine() -> tuple[int, int]:
    """This machine's row of MACHINES. Raises OSError if its architecture is not listed."""
    name = os.uname().machine
    if name not in MACHINES or sys.maxsize < 2**32:
        raise OSError(errno.ENOSYS, f"system calls of {name} are not known to the sandbox")
    return MACHINES[name]


def numbers(calls: Numbers) -> dict[str, int]:
    """The numbers of these system calls on this machine, without those that it lacks."""
    column, _ = this_machine()
    return {name: number for name, row in calls.items() if (number := row[column]) is not None}


CLONE3 = 435
CLONE_THREAD = 0x00010000
AF_UNIX = 1
X32_BIT = 0x40000000

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF instructions: load a word of seccomp_data, jump if equal, if at least, if a bit is set; return."""

NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
"""Offsets in struct seccomp_data; an argument has two words, the lower one first."""

ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000


def filter_program() -> bytes:
    """The filter as instructions of classic BPF (linux/filter.h): code, jump if true, jump if false, value."""
    _, architecture = this_machine()
    refuse, unknown = (RETURN, 0, 0, FAIL | errno.EPERM), (RETURN, 0, 0, FAIL | errno.ENOSYS)
    program = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32_BIT),  # the same calls with other numbers
        refuse,
        (AT_LEAST, 1, 0, NEWER),
        (EQUAL, 0, 1, CLONE3),  # a filter cannot see its flags; glibc falls back to clone
        unknown,
    ]
    for call, test, value in (
        ("clone", ANY_BIT, CLONE_THREAD),
        ("socket", EQUAL, AF_UNIX),
        ("socketpair", EQUAL, AF_UNIX),
    ):
        allowed_if = (test, 1, 0, value)
        program += [
            (EQUAL, 0, 4, numbers(ARGUMENTS)[call]),
            (LOAD, 0, 0, FIRST_ARGUMENT),
            allowed_if,
            refuse,
            (LOAD, 0, 0, NUMBER),
        ]
    for denied in numbers(DENIED).values():
        program += [(EQUAL, 0, 1, denied), refuse]
    program.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
