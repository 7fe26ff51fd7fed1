"""How much memory there is: of a GPU, or of the machine as far as this process may use it."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
SWAPS = Path("/proc/swaps")


def device_memory(device_type: str) -> int | None:
    """Bytes of the first GPU, or of the machine for a CPU; None where that cannot be known (Apple's GPUs)."""
    match device_type:
        case "cuda":
            return int(torch.cuda.get_device_properties(0).total_memory)
        case "cpu":
            return machine_memory()
        case _:
            return None


def machine_memory() -> int | None:
    """Bytes of memory and swap, or the least limit of the control groups that this process is in."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    return min([physical + _swap(), *_cgroup_limits()])


def _swap() -> int:
    """Bytes, by the third column of a table with a header, in KiB."""
    rows = _read(SWAPS).splitlines()[1:]
    return sum(int(row.split()[2]) * 1024 for row in rows)


def _cgroup_limits() -> Iterator[int]:
    """Of version 2 at each level (`memory.max`), and of version 1."""
    for line in _read(OWN_CGROUP).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            own = CGROUPS / path.lstrip("/")
            files = [folder / "memory.max" for folder in (own, *own.parents) if folder.is_relative_to(CGROUPS)]
        elif "memory" in controllers.split(","):
            # A container sees its own group as the root.
            files = [CGROUPS / "memory" / place / "memory.limit_in_bytes" for place in (path.lstrip("/"), "")]
        else:
            continue
        yield from (int(limit) for limit in (_read(file).strip() for file in files) if limit.isdecimal())


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
