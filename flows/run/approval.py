"""A person's yes before a stage runs: in Prefect's pages where a server records the run, else in the terminal."""

import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

from flows.run.record import replies

APPROVAL_SECONDS = 7 * 24 * 3600
POLL_SECONDS = 0.5


def ask(stage: str, given_up: Callable[[], bool], record: Path, *, recorded: bool, say: Callable[[str], None]) -> str:
    """Wait for a person's answer. Returns why the stage may not run; nothing for a yes.

    `recorded`: whether a recorder follows the record, so that Prefect's pages can ask.
    """
    deadline = time.monotonic() + APPROVAL_SECONDS
    if recorded:
        say(f"{stage} waits for approval: resume the run in Prefect's pages")
        while not given_up() and time.monotonic() < deadline:
            for message in replies(record):
                if message.get("approval") == stage:
                    return "" if message["answer"] else "not approved"
                if "page" in message or "unreachable" in message:
                    recorded = "page" in message
            if not recorded:
                break
            time.sleep(POLL_SECONDS)
    if not recorded and sys.stdin.isatty():
        say(f"{stage} waits for approval: run it? [y/N]")
        while not given_up() and time.monotonic() < deadline:
            if select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
                return "" if sys.stdin.readline().strip().lower() in ("y", "yes") else "not approved"
    if recorded or sys.stdin.isatty():
        return "not approved: no answer"
    return (
        f"{stage} needs approval, and there is neither a terminal nor a Prefect server to ask in: run it from a "
        "terminal, or start `parrotflow ui` or set PREFECT_API_URL first"
    )
