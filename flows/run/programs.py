"""The checks of stages, process groups, and what programs see and print of secrets.

A stage's `meta.flow.check` says, before anything starts, whether the stage can succeed and what it would cost;
`parrotflow why` and `parrotflow run` start it.
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

MAX_LINE_LETTERS = 10_000

MIN_SECRET_LETTERS = 8
"""A shorter value would be found inside words and numbers, and the marks of it would give it away."""


def redactor(environment: Mapping[str, str] = os.environ) -> Callable[[str], str]:
    """Return a function that replaces the values of variables with a secret's name, and tokens of the Hub, by names.

    It is called line by line, so each line of a value counts by itself; the longest first, since one may hold another.
    """
    lines = {
        line.strip(): name
        for name, value in environment.items()
        if SECRET_NAMES.search(name)
        for line in value.splitlines()
        if len(line.strip()) >= MIN_SECRET_LETTERS
    }
    values = dict(sorted(lines.items(), key=lambda item: len(item[0]), reverse=True))

    def redact(text: str) -> str:
        for value, name in values.items():
            text = text.replace(value, f"[{name}]")
        return HUB_TOKEN.sub("[token]", text)

    return redact


def stage_environment(to_do: Iterable[str]) -> dict[str, str]:
    """The environment of stages and their checks: this process's without the secrets of Prefect, which none needs.

    It names the stages `to_do`, whose parameters have been checked.
    """
    is_prefects = re.compile(rf"PREFECT_.*({SECRET_NAMES.pattern})", re.IGNORECASE)
    given = {name: value for name, value in os.environ.items() if not is_prefects.match(name)}
    return given | {STAGES_TO_DO: " ".join(to_do)}


def shown_lines(lines: Sequence[str], redact: Callable[[str], str]) -> list[str]:
    """The lines of a program that are logged and shown: no blank ones, long ones cut, secrets hidden."""
    return [redact(line)[:MAX_LINE_LETTERS] for line in lines if line.strip()]


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group, if it still has a member."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def group_lives(group: int) -> bool:
    """Whether a process group has a member that runs. A zombie stays for ever if no process of a container reaps it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, 0)  # most groups are empty, and to look through all processes takes milliseconds
        for process in psutil.process_iter(["status"]):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                    return True
    return False


@contextlib.contextmanager
def stopping_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """While within, Ctrl-C, SIGTERM and a closed terminal call `stop`. `nohup` ignores SIGHUP on purpose."""
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}  # of Prefect, for SIGTERM
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def last_error(lines: Sequence[str]) -> str:
    """The message of a program's last `error: ...` line with the lines after it, else its last line."""
    errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    return "\n".join(lines[errors[-1] :] if errors else lines[-1:]).removeprefix("error: ")


def checks(plan: "Plan", redact: Callable[[str], str], *, before_run: bool = False) -> Iterator[str]:
    """Run the checks of the stages that may run, and yield what they print below their stage's name.

    `before_run` includes the checks that make changes. The first stage is checked too: when it reports a fault itself,
    DVC has deleted its outputs.

    A check that exits with 69 (`unavailable`) or takes too long is a warning: a network may be back when the stage's
    turn comes. Raises UserError, after all checks, with the messages of those that fail.
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
    """The lines that a check prints, and its exit code. Raises OSError if it does not start, else UnavailableError."""
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
