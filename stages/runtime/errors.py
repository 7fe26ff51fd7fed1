"""How a command reports a failure: an exit code and a message."""

import difflib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

STATE_DIR = Path(".parrotflow")
"""The state of this machine's runs, in the project's folder; it is not shared."""

STAGES_TO_DO = "PARROTFLOW_STAGES_TO_DO"
"""The stages that are not up to date, separated by spaces, for the checks of stages."""

END_FILE = "PARROTFLOW_END_FILE"
"""The file to which a stage's command writes its exit code and message, as JSON, if it fails."""

EXIT_USER_ERROR = 2
"""The input or the parameters are wrong: a retry cannot help."""

EXIT_INPUTS_CHANGED = 65
"""Inputs were edited while the stage ran, so nothing is recorded: run the same command again (EX_DATAERR)."""

EXIT_UNAVAILABLE = 69
"""A network or a service does not answer (EX_UNAVAILABLE of sysexits.h): a retry may help."""

EXIT_CONTINUE = 75
"""Stopped by request (SIGTERM; a run or a sweep also by Ctrl-C), with everything saved: the same command continues
there (EX_TEMPFAIL of sysexits.h)."""

EXIT_TERMINATED = 143
"""Stopped by request, but not everything was saved: the same command continues from an earlier state."""

EXIT_REFUSED = 77
"""A quality gate refused the stage's input (EX_NOPERM): nothing was done, a retry cannot help, and a pipeline run ends
in the state Refused, not Failed."""

EXIT_DISK_FULL = 28
"""No space left (errno ENOSPC): free some and run the same command again."""

EXIT_BROKEN_PIPE = 141
"""The reader of the output is gone (128 + SIGPIPE, as in shells)."""

EXIT_INTERRUPTED = 130
"""Ctrl-C (128 + SIGINT, as in shells)."""


class UserError(Exception):
    """A mistake that a user can correct. Its message says what is wrong, where, and what to do."""

    exit_code = EXIT_USER_ERROR


def did_you_mean(word: str, known: Iterable[str], whole: Mapping[str, str] | None = None) -> str:
    """The end of a message about an unknown word: the known one that it resembles, if there is one.

    `whole` has what to write instead of some of the known words.
    """
    near = difflib.get_close_matches(word, [*known], 1)
    return f"; did you mean `{(whole or {}).get(near[0], near[0])}`?" if near else ""


class UnavailableError(UserError):
    """A network or a service does not answer: the same command may succeed later."""

    exit_code = EXIT_UNAVAILABLE


class RefusedError(UserError):
    """A quality gate refused the stage's input."""

    exit_code = EXIT_REFUSED


class InputsChangedError(UserError):
    """An input was edited while the stage ran, so its result matches no state of the project."""

    exit_code = EXIT_INPUTS_CHANGED


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def describe_error(error: Exception) -> str:
    """An error's type and message in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def message_on_one_line(error: BaseException) -> str:
    """An error's message without line breaks; for an OSError only the reason."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(reason.split()) or type(error).__name__


def is_access_denied(error: BaseException | None) -> bool:
    """True if a file system or a remote refused access. Clouds have their own errors: NoCredentialsError, ..."""
    statuses = {getattr(error, "status", 0), getattr(error, "status_code", 0)}  # HTTP and WebDAV
    return isinstance(error, PermissionError) or "Credential" in type(error).__name__ or bool(statuses & {401, 403})


def visible(text: str, kept: str = "") -> str:
    """Escape characters that are not printable, such as a terminal's control sequences, except `kept`."""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def private_state_dir(project: Path = Path()) -> Path:
    """Create a project's `.parrotflow`, unless it exists; git ignores it, and only its owner can enter it.

    In it DVC makes folders that all users can write to (mode 0777), and uses them to detect changes. Another user's
    folder keeps its mode; if `.parrotflow` is a link, only DVC's part is made private.
    """
    home = project / STATE_DIR
    private = home / "dvc" if home.is_symlink() else home
    private.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = private.stat()
    if status.st_uid == os.geteuid() and status.st_mode & 0o077:
        private.chmod(0o700)
    ignore = home / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return home


def whole_number(variable: str) -> int | None:
    """The value of an environment variable; None if it is unset or empty. Raises UserError unless it is 1 or more."""
    value = os.environ.get(variable)
    if not value:
        return None
    if not value.strip().isdecimal() or int(value) < 1:
        raise UserError(f"{variable}={value}: expected a whole number, 1 or more")
    return int(value)


def fail(message: str, code: int) -> None:
    """Print `error: ...` to standard error and exit with `code`."""
    print("error:", visible(message, kept="\n\t"), file=sys.stderr, flush=True)
    raise SystemExit(code)
