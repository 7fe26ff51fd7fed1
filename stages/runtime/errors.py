"""How a command reports a failure: an exit code and one clear message."""

import os
import sys
from pathlib import Path

STATE_DIR = Path(".parrotflow")
"""The state of this machine's runs, in the project's folder; it is not shared."""

STAGES_TO_DO = "PARROTFLOW_STAGES_TO_DO"
"""Names with spaces between: the stages that are not up to date, for a stage's check."""

END_FILE = "PARROTFLOW_END_FILE"
"""The file in which a stage's command leaves its exit code and message, as JSON, if it fails."""

EXIT_USER_ERROR = 2
"""The input or the parameters are wrong: a retry cannot help."""

EXIT_INPUTS_CHANGED = 65
"""Inputs were edited while the stage ran, so nothing is recorded: run the same command again (EX_DATAERR)."""

EXIT_UNAVAILABLE = 69
"""A network or a service does not answer (EX_UNAVAILABLE of sysexits.h): a retry may help."""

EXIT_CONTINUE = 75
"""Asked to stop (by SIGTERM; a run or a sweep also by Ctrl-C), and all is saved: the same command continues there
(EX_TEMPFAIL of sysexits.h)."""

EXIT_TERMINATED = 143
"""Asked to stop, and not everything could be saved: the same command continues from an earlier state."""

EXIT_REFUSED = 77
"""A quality gate of the stage refused its input (EX_NOPERM): nothing was done, a retry cannot help, and a run of the
pipeline ends in the state Refused instead of Failed."""

EXIT_DISK_FULL = 28
"""No space left (errno ENOSPC): free some and run the same command again."""

EXIT_BROKEN_PIPE = 141
"""The reader of the output has gone, as shells report it."""

EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells report it."""


class UserError(Exception):
    """A mistake that a user can correct. Its text says what is wrong, where, and what to do."""

    exit_code = EXIT_USER_ERROR


class UnavailableError(UserError):
    """A network or a service that does not answer: the same command may succeed later."""

    exit_code = EXIT_UNAVAILABLE


class RefusedError(UserError):
    """A quality gate of the stage does not let its input pass."""

    exit_code = EXIT_REFUSED


class InputsChangedError(UserError):
    """An input was edited while the stage ran, so its result belongs to no state of the project."""

    exit_code = EXIT_INPUTS_CHANGED


def first_line(error: BaseException) -> str:
    """The first line of what an error says; the name of its class if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def describe_error(error: Exception) -> str:
    """An error's type and message in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def message_on_one_line(error: BaseException) -> str:
    """The message of a library's error without line breaks; of the operating system's only the reason."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(reason.split()) or type(error).__name__


def is_access_denied(error: BaseException | None) -> bool:
    """Whether a file system or a remote refuses access. Clouds have errors of their own: NoCredentialsError, ..."""
    statuses = {getattr(error, "status", 0), getattr(error, "status_code", 0)}  # of HTTP and of WebDAV
    return isinstance(error, PermissionError) or "Credential" in type(error).__name__ or bool(statuses & {401, 403})


def visible(text: str, kept: str = "") -> str:
    """A text whose characters that are not shown, or that a terminal would obey, are escapes, but for those kept."""
    return "".join(one if one.isprintable() or one in kept else one.encode("unicode_escape").decode() for one in text)


def private_state_dir(project: Path = Path()) -> Path:
    """A project's `.parrotflow`, which only its owner can enter and git ignores; made if it is missing.

    DVC makes folders in it that all users may write (mode 0777), and decides by them which files have changed. A folder
    of another user is left as it is, and so is the target of a link, of which only DVC's part is closed.
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
    """The value of a variable, 1 or more; None if it is unset or empty. Raises UserError for another one."""
    given = os.environ.get(variable)
    if not given:
        return None
    if not given.strip().isdecimal() or int(given) < 1:
        raise UserError(f"{variable}={given}: expected a whole number, 1 or more")
    return int(given)


def fail(message: str, code: int) -> None:
    """Print one line `error: ...` to standard error and leave with `code`."""
    print("error:", visible(message, kept="\n\t"), file=sys.stderr, flush=True)
    raise SystemExit(code)
