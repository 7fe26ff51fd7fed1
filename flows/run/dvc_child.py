"""A child of the fork server: it runs one `dvc` command, and ends its process group when its parent ends."""

import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from flows.dvc_repo import fetch_result, in_order_of_repro, open_repo
from stages.runtime.errors import UserError
from stages.runtime.supervision import seconds_since_saving

SINGLE = "--single-item"
"""DVC's option to run the targets without their upstream stages."""

GRACE_SECONDS = 35.0
"""The time between SIGTERM, or a training's last sign that it is saving its state, and SIGKILL."""

DID: Mapping[str, "Did"] = {
    "Running stage '%s':": "ran",
    "Stage '%s' is cached - skipping run, checking out outputs": "restored",
    "Verifying %s in %s%s": "recorded",
}
"""What DVC did with a stage, by the format of its message (read in 3.67.1); no message means that nothing changed."""

Did = Literal["ran", "restored", "recorded", "unchanged"]


def run_in_child(
    work: Callable[[], int], folder: str, environment: Mapping[str, str], output: Connection, report: Connection
) -> None:
    """Do `work` in a project's folder and end this process.

    `report` gets, for each stage, what DVC did and the stage's name. At the end it gets the exit code that `work`
    returns, the exit code of the failed stage's command, and DVC's error message.
    """
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    assert parent is not None
    _end_group_after(partial(connection.wait, [parent.sentinel]))
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    messages = _Messages(report)
    for name in ("dvc", "dvc_objects", "dvc_data"):
        logging.getLogger(name).handlers = [messages]
    # Hides DVC's advice and progress bars. Programs write to descriptor 1.
    sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    try:
        report.send((work(), messages.stage_code, messages.failure))
    except UserError as error:
        report.send((error.exit_code, None, str(error)))
    os._exit(0)  # a normal exit with DVC imported takes 0.25 s


def repro(targets: Sequence[str], options: Sequence[str], *, pull: bool) -> int:
    """Run `dvc repro` and return its exit code. With `pull`, fetch each stage's result, then run the stage.

    DVC's own --pull fails if an object is missing. Raises the errors of `fetch_result`.
    """
    from dvc.cli import main

    command = ["--wait-for-lock", "repro", *options]
    if not pull:
        return int(main([*command, *targets]))
    names = targets
    if SINGLE not in options:
        command.append(SINGLE)
        with open_repo() as repo:
            stages = {stage for target in targets for stage in repo.stage.collect(target, with_deps=True)}
            names = [stage.addressing for stage in in_order_of_repro(stages, repo.index.graph)]
    for name in names:
        if missing := fetch_result(name):
            os.write(1, f"warning: the DVC remote does not have {', '.join(missing[:3])}; computing {name}\n".encode())
        if code := int(main([*command, name])):
            return code
    return 0


def _end_group_after(wait: Callable[[], object]) -> None:
    """Once `wait` returns, end this process group. DVC lives longer than its program, and releases its locks."""

    def end() -> None:
        wait()
        os.killpg(0, signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        while seconds_since_saving() < GRACE_SECONDS:
            time.sleep(1)
        os.killpg(0, signal.SIGKILL)

    # A handler, because programs would inherit SIG_IGN.
    signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=end, daemon=True).start()


class _Messages(logging.Handler):
    """Reports what DVC does with each stage, keeps the last error, and prints warnings among the stage's lines."""

    def __init__(self, report: Connection) -> None:
        super().__init__(logging.INFO)
        self.report = report
        self.stage_code: int | None = None
        self.failure = ""

    def emit(self, record: logging.LogRecord) -> None:
        causes: list[BaseException] = []
        error = record.exc_info[1] if record.exc_info else None
        while error is not None:
            causes.append(error)
            error = error.__cause__
        text = ": ".join(filter(None, [record.getMessage(), *map(str, causes)]))[:1000]
        if record.levelno >= logging.ERROR:
            self.failure = text
            self.stage_code = next((code for cause in causes if (code := _code_of_command(cause)) is not None), None)
        elif record.levelno == logging.WARNING:
            os.write(1, f"{text}\n".encode())
        elif did := DID.get(str(record.msg)):
            self.report.send((did, str(record.args[0]) if isinstance(record.args, tuple) else ""))


def _code_of_command(error: BaseException) -> int | None:
    """Return the exit code of a stage's command; DVC has it only at the end of its message (read in 3.67.1)."""
    match = re.search(r"exited with (-?\d+)\s*$", str(error)) if type(error).__name__ == "StageCmdFailedError" else None
    return int(match.group(1)) if match else None
