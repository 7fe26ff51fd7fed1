"""The checks of stages, process groups, and the secrets in programs' environments and output.

A stage's `meta.flow.check` is a program that predicts if the stage can succeed and what it would cost. `parrotflow why`
and `parrotflow run` run it before any stage starts.
"""

import asyncio
import contextlib
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import psutil

from stages.runtime.credentials import HUB_TOKEN, SECRET_NAMES
from stages.runtime.errors import EXIT_UNAVAILABLE, STAGES_TO_DO, UnavailableError, UserError

if TYPE_CHECKING:
    from flows.plan.graph import Plan
    from flows.plan.settings import Program

CHECK_SECONDS = 180.0
"""A check that takes longer is ended, with a warning."""


def redactor(environment: Mapping[str, str] = os.environ) -> Callable[[str], str]:
    """Return a function that replaces secrets in a line: the values of secret variables, and the Hub's tokens.

    It replaces each line of a value by itself, and the longest first, since one secret may contain another.
    """
    # A value below 8 characters also occurs in words and numbers, and replacing it there would reveal it.
    lines = {
        line.strip(): name
        for name, value in environment.items()
        if SECRET_NAMES.search(name)
        for line in value.splitlines()
        if len(line.strip()) >= 8
    }
    values = dict(sorted(lines.items(), key=lambda item: len(item[0]), reverse=True))

    def redact(text: str) -> str:
        for value, name in values.items():
            text = text.replace(value, f"[{name}]")
        return HUB_TOKEN.sub("[token]", text)

    return redact


def stage_environment(to_do: Iterable[str]) -> dict[str, str]:
    """Return the environment of stages and their checks: this process's, without Prefect's secrets.

    It lists the stages `to_do`, whose parameters have been checked.
    """
    prefect_secret = re.compile(rf"PREFECT_.*({SECRET_NAMES.pattern})", re.IGNORECASE)
    passed_on = {name: value for name, value in os.environ.items() if not prefect_secret.match(name)}
    return passed_on | {STAGES_TO_DO: " ".join(to_do)}


def shown_lines(lines: Sequence[str], redact: Callable[[str], str]) -> list[str]:
    """Drop blank lines, hide secrets, and cut off long lines."""
    return [redact(line)[:10_000] for line in lines if line.strip()]


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def group_lives(group: int) -> bool:
    """Return True if a process of this group runs; zombies do not count, since a container may never reap them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, 0)  # most groups are empty, and listing all processes takes milliseconds
        for process in psutil.process_iter(["status"]):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                    return True
    return False


@contextlib.contextmanager
def stopping_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Make Ctrl-C, SIGTERM and a closed terminal call `stop`. SIGHUP stays ignored under `nohup`."""
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}  # Prefect has a handler for SIGTERM
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def last_error(lines: Sequence[str]) -> str:
    """Return the message of a program's last `error: ...` line with the lines after it, else the last line."""
    errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    return "\n".join(lines[errors[-1] :] if errors else lines[-1:]).removeprefix("error: ")


def checks(plan: "Plan", redact: Callable[[str], str], *, before_run: bool = False) -> Iterator[str]:
    """Run the checks of the stages that may run, and yield each stage's name with its check's output.

    `before_run` includes the checks that make changes. The first stage is checked too, because DVC deletes its outputs
    before the stage itself can report a fault.

    A check that exits with 69 (`unavailable`) or takes too long gives a warning: the network may be back when the stage
    starts. Raises UserError, after all checks, with the messages of the failed ones.
    """
    to_do, failed = [stage.name for stage in plan.to_do], list[str]()
    for stage in plan.to_do:
        program = stage.policy.check
        if program is None or not program.when or stage.state == "restore":
            continue
        if program.makes_changes and not before_run:
            continue
        later = f"{stage.name} may fail when its turn comes"
        try:
            lines, code = checked(program, redact, to_do)
        except OSError as error:
            failed.append(f"dvc.yaml: {stage.name}.meta.flow.check: `{program.command}`: {error}")
            continue
        except UnavailableError as error:
            yield f"warning: {error}; {later}"
            continue
        message = last_error(lines)
        if code:
            lines = lines[: len(lines) - len(message.splitlines())]
        if lines:
            yield from [f"{stage.name}:", *(f"  {line}" for line in lines)]
        message = message or f"`{program.command}` exited with {code}"
        if code == EXIT_UNAVAILABLE:
            yield f"warning: {message}; {later}"
        elif code:
            failed.append(message)
    if failed:
        raise UserError("\n".join(failed))


def checked(program: "Program", redact: Callable[[str], str], to_do: Iterable[str]) -> tuple[list[str], int]:
    """Run a check; return its lines and exit code. Raises OSError if it fails to start, UnavailableError on timeout."""
    process = subprocess.Popen(
        shlex.split(program.command),
        env=stage_environment(to_do),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"`{program.command}` took longer than {CHECK_SECONDS:g} s and was ended") from None
    finally:
        signal_group(process.pid, signal.SIGKILL)
    return [redact(line) for line in output.splitlines()], process.returncode
