"""Groups of processes: a program with all that it has started."""

import contextlib
import os


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group, if it still has a member."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def group_lives(group: int) -> bool:
    """Whether a process group has a member."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
