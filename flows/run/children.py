"""Processes and signals: what a run asks of the one that forks DVC, how a stage ends with all it started, and a run."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

END = "\0end "
"""Before DVC's exit code, in the last message of a stage's process; one without such a message was killed."""


@dataclass(frozen=True, slots=True)
class Request:
    """Bring one stage up to date."""

    stage: str
    folder: str = ""
    """The project's folder, where it is not that of the run."""
    force: bool = False
    pull: bool = False
    check_cache: bool = False
    """Whether its result may come from DVC's cache, so that damaged entries are to be dropped first."""
    environment: dict[str, str | None] = field(default_factory=dict)
    """Variables to set for this stage; None removes one."""


@dataclass(frozen=True, slots=True)
class StageProcess:
    """A stage that is being brought up to date. It leads a session and a process group of its own."""

    pid: int
    output: int
    """Descriptor of what the stage's command prints."""
    messages: int
    """Descriptor of what DVC itself prints; at its end the process has ended."""


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


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """While within, Ctrl-C and SIGTERM call `stop`. In other threads than the main one signals stay as they are.

    After a SIGTERM another one changes nothing, also later: it must not kill a run that says how it has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            before[signal.SIGTERM] = lambda number, frame: None
        stop()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
