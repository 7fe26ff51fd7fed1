"""A run from a terminal: stages that wait for nothing begin before Prefect is even imported."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from flows.dvc.rwlock import forget_zombies, remove_torn_table
from flows.plan.graph import make_plan
from flows.plan.params import check_params
from flows.project.accept import drop_expired
from flows.run.execution import Run
from flows.run.process import Children
from flows.run.run_lock import run_lock

FIRST_WORDS_SECONDS = 1.0
"""Longer than DVC mostly takes until it starts a stage's command. Importing Prefect meanwhile would hold it up."""

_begun: list[Run] = []
"""What `run` has begun, for the flow to take over."""


def run(
    load_flow: Callable[[], Callable[..., Any]],
    targets: Sequence[str] = (),
    *,
    force: bool = False,
    downstream: bool = False,
    keep_going: bool = False,
    pull: bool = False,
    wait: bool = False,
) -> None:
    """Run the flow that `load_flow` imports; leaves with 1 on failure.

    Faults of the parameters are told before anything starts.
    """
    with run_lock("`parrotflow run`", wait=wait):
        begun = prepared(targets, force, downstream, keep_going, pull)
        _begun.append(begun)
        with stopped_by_signals(begun.children), contextlib.closing(begun.warm_dvc):
            try:
                begun.terminal.open()
                begun.begin_what_can()
                begun.wait_for_first_words(FIRST_WORDS_SECONDS)
                state = load_flow()(list(targets), force, downstream, keep_going, pull, wait, return_state=True)
            except BaseException:
                begun.children.stop()
                raise
    if not state.is_completed():
        raise SystemExit(1)


def taken_over() -> Run | None:
    """What `run` has begun in this process; None where Prefect itself started the flow."""
    return _begun.pop() if _begun else None


def prepared(targets: Sequence[str], force: bool, downstream: bool, keep_going: bool, pull: bool) -> Run:
    """Check the parameters, mend what a kill left, and plan."""
    check_params()
    if remove_torn_table():
        print("DVC's table of locks was cut off by a kill or a power failure: removed, nothing is lost", flush=True)
    forget_zombies()
    drop_expired()
    plan = make_plan(targets, force=force, downstream=downstream)
    for warning in plan.warnings:
        print(f"warning: {warning}", flush=True)
    return Run(plan, force=force, pull=pull, keep_going=keep_going)


@contextlib.contextmanager
def stopped_by_signals(children: Children) -> Iterator[None]:
    """While within, Ctrl-C and SIGTERM end the children and let the flow end in order."""

    def stop(number: int, frame: FrameType | None) -> None:
        # The handler returns at once: the main thread goes on waiting for the tasks, which end with their children.
        threading.Thread(target=children.stop).start()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
