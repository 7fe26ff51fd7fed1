"""What must hold before a stage runs: the conditions of its gate on results, and a person's yes."""

import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stages.runtime.entry import UserError
from stages.runtime.section import read_key

if TYPE_CHECKING:
    from flows.plan.policy import Check

APPROVAL_SECONDS = 24 * 3600
"""How long a run waits for a person. It keeps a deployment's slot for as long."""

POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class CheckedMetric:
    """One condition and how it came out."""

    metric: str
    value: float
    condition: str
    """With the bound's value."""
    holds: bool


def judge(checks: Sequence["Check"]) -> list[CheckedMetric]:
    """Each check that has a bound. Raises UserError where a metric's file or key does not exist, or is no number."""
    return [
        CheckedMetric(check.metric.partition(":")[2], value, f"at most {check.at_most:g}", value <= check.at_most)
        for check in checks
        for value in [read_value(check.metric)]
        if check.at_most is not None
    ]


def read_value(location: str) -> float:
    """The number at FILE:KEY."""
    file, _, key = location.partition(":")
    if not Path(file).exists():
        raise UserError(f"dvc.yaml: gate on `{location}`: no such file; name FILE:KEY of a metric")
    value = read_key(Path(file), key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"dvc.yaml: gate on `{location}`: the value there is not a number")
    return float(value)


def table(verdicts: Sequence[CheckedMetric]) -> str:
    """The verdicts in Markdown."""
    lines = ["| metric | value | condition | |", "|---|--:|---|---|"]
    for verdict in verdicts:
        lines.append(
            f"| {verdict.metric} | {verdict.value:g} | {verdict.condition} | {'yes' if verdict.holds else 'NO'} |"
        )
    return "\n".join(lines)


def ask_in_terminal(stage: str, given_up: Callable[[], bool]) -> str:
    """Wait for a person's answer in the terminal. Returns why the stage may not run; nothing for a yes."""
    if not sys.stdin.isatty():
        return (
            f"{stage} needs approval, and there is neither a terminal nor a Prefect server to ask in: run it from a "
            "terminal, or start `parrotflow ui` or set PREFECT_API_URL first"
        )
    deadline = time.monotonic() + APPROVAL_SECONDS
    while not _asking.acquire(timeout=POLL_SECONDS):
        if given_up():
            return no_answer(stage)
    try:
        print(f"{stage} waits for approval: run it? [y/N]", flush=True)
        while not given_up() and time.monotonic() < deadline:
            if select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
                return "" if sys.stdin.readline().strip().lower() in ("y", "yes") else "not approved"
        return no_answer(stage)
    finally:
        _asking.release()


_asking = threading.Lock()
"""There is one terminal."""


def no_answer(stage: str) -> str:
    """The reason for a refusal where no answer came."""
    return f"{stage} is not approved: no answer within {APPROVAL_SECONDS // 3600} hours"
