"""What a command tells its user: an exit code and one clear message, which shows no credential.

What a user writes into params.yaml is recorded, cached and published as it is, so a URL there may hold no credential:

- no password before the host (`scheme://user:password@host`, `https://token@host`);
- no parameter whose name ends like that of a signature, a token, a password or a key, such as `X-Amz-Signature` and
  `X-Amz-Credential` (S3), `sig` (Azure), `access_token`, `key`.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import overload

STATE_DIR = Path(".parrotflow")
"""What runs leave on this machine, in the project's folder; it is not shared."""

STAGES_TO_DO = "PARROTFLOW_STAGES_TO_DO"
"""Names with spaces between: the stages that are not up to date, for a stage's check."""

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


PARTS = re.compile(r"([\w+.-]+)://(?:([^/?#]*)@)?([^?#]*)(.*)", re.DOTALL)
"""Scheme, user and password, host and path, query and fragment. `urlsplit` fails at wildcards such as `[0-9]`."""

LOGIN = re.compile(
    r"(?<=://)[^\s/?#@:\"<>]*:(?!\$)[^\s/?#@\"<>]+@|((?<=http://)|(?<=https://))(?!\$)[^\s/?#@:\"<>]+@", re.IGNORECASE
)
"""User and password, and with http a user alone, which is mostly a token. What a shell or DVC puts in, such as
`$PASSWORD`, is no password yet."""

SECRET_QUERY = re.compile(
    r"(?P<place>://[^\s\"<>\\?#]*)[?#](?:[^\s\"<>\\]*[?&#;])?"
    r"(?P<name>[\w.-]*(?:sig|signature|token|secret|password|key|credential))=[^\s\"<>\\]+",
    re.IGNORECASE,
)
"""Host and path, and a query or fragment with such a parameter."""

SECRET_NAMES = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY", re.IGNORECASE)
"""Parts of the names of environment variables whose values are credentials."""

REMEDY = (
    "which logs, records and publications would show; take it out, and give it in ~/.netrc or fsspec's configuration "
    "(docs/how-to/data.md, Sources that need a login)"
)


class UserError(Exception):
    """A mistake that a user can mend. Its text says what is wrong, where, and what to do."""

    exit_code = EXIT_USER_ERROR


class UnavailableError(UserError):
    """A network or a service that does not answer: the same command may succeed later."""

    exit_code = EXIT_UNAVAILABLE


class RefusedError(UserError):
    """A quality gate of the stage does not let its input pass."""

    exit_code = EXIT_REFUSED


class InputsChangedError(UserError):
    """What the stage reads was edited while it ran: its result belongs to no state of the project."""

    exit_code = EXIT_INPUTS_CHANGED


def first_line(error: BaseException) -> str:
    """The first line of what an error says; the name of its class where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def visible(text: str, kept: str = "") -> str:
    """A text whose characters that are not shown, or that a terminal would obey, are escapes, but for those kept."""
    return "".join(one if one.isprintable() or one in kept else one.encode("unicode_escape").decode() for one in text)


def private_state_dir(project: Path = Path()) -> Path:
    """A project's `.parrotflow`, which only its owner can enter; made where it is missing.

    DVC makes folders in it that all users may write (mode 0777), and decides by them which files have changed. A folder
    of another user is left as it is, and so is the target of a link, of which only DVC's part is closed.
    """
    home = project / STATE_DIR
    private = home / "dvc" if home.is_symlink() else home
    private.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = private.stat()
    if status.st_uid == os.geteuid() and status.st_mode & 0o077:
        private.chmod(0o700)
    return home


@overload
def whole_number(variable: str, default: int) -> int: ...
@overload
def whole_number(variable: str, default: None) -> int | None: ...
def whole_number(variable: str, default: int | None) -> int | None:
    """The value of a variable; `default` where it is unset or empty. Raises UserError unless it is a whole number
    above 0."""
    given = os.environ.get(variable)
    if not given:
        return default
    if not given.strip().isdecimal() or int(given) < 1:
        raise UserError(f"{variable}={given}: expected a whole number, 1 or more")
    return int(given)


def fail(message: str, code: int) -> None:
    """Print one line `error: ...` to standard error and leave with `code`."""
    print("error:", visible(message, kept="\n\t"), file=sys.stderr, flush=True)
    raise SystemExit(code)


def credential_in(text: str) -> str | None:
    """What kind of credential a URL in a text holds, without the credential itself."""
    return next((kind for _, kind in credentials(text)), None)


def credentials(text: str) -> Iterator[tuple[int, str]]:
    """Position and kind of each credential that a URL in a text holds."""
    yield from ((match.start(), "a password") for match in LOGIN.finditer(text))
    yield from ((match.start(), f"the parameter `{match['name']}`") for match in SECRET_QUERY.finditer(text))


def without_credentials(text: str) -> str:
    """A text whose URLs have lost users with passwords, and the queries with a credential.

    The other parameters of a signed URL (user, expiry) say nothing of the file.
    """
    return SECRET_QUERY.sub(r"\g<place>", LOGIN.sub("", text))


def refuse_credentials(where: str, values: object) -> None:
    """Raise UserError that names each of the nested `values` whose URL holds a credential; it does not repeat it."""
    if faults := [f"{where}: {key}the URL holds {kind}, {REMEDY}" for key, kind in _found("", values)]:
        raise UserError("\n".join(faults))


def _found(key: str, values: object) -> Iterator[tuple[str, str]]:
    if isinstance(values, str) and (kind := credential_in(values)):
        yield f"{without_credentials(key)}: " if key else "", kind
    if isinstance(values, Mapping):
        for name, value in values.items():
            own = f"{key}.{name}" if key else str(name)
            yield from _found(own, str(name))
            yield from _found(own, value)
    elif isinstance(values, list):
        for number, value in enumerate(values):
            yield from _found(f"{key}.{number}" if key else str(number), value)
