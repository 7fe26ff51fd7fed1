"""Programs that a reproduction starts, and the right to its folder, which they hold as long as they live."""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.run.locks import held_locks, run_lock
from stages.runtime.credentials import credential_in, without_credentials
from stages.runtime.entry import EXIT_TERMINATED, EXIT_UNAVAILABLE, UnavailableError, UserError, private_state_dir

MARK = "parrotflow-reproduce"
"""An empty file; a folder that has it is one of a reproduction."""

KEPT = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_.*|TZ|TERM|COLUMNS|LINES|NO_COLOR|TMPDIR|TEMP|TMP|"
    "CC|CXX|CPATH|LIBRARY_PATH|LD_.*|DYLD_.*|CUDA_.*|ROCM_.*|HIP_.*|HSA_.*|"
    "(HTTPS?|ALL|NO)_PROXY|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL|AWS)_CA_BUNDLE|XDG_.*_(HOME|DIRS?)|"
    "GIT_(SSL_.*|CONFIG_(GLOBAL|SYSTEM|NOSYSTEM))|PYENV_ROOT|PYTHON(PATH|UNBUFFERED|DONTWRITEBYTECODE)|"
    "HF_(HOME|HUB_CACHE|DATASETS_CACHE|ENDPOINT|HUB_OFFLINE|HUB_DISABLE_.*)|"
    "DO_NOT_TRACK|DVC_(NO_ANALYTICS|SITE_CACHE_DIR)|"
    "PARROTFLOW_(WORKERS|STAGES_AT_ONCE|SHARD_CACHE_GB|RESTARTS|GRACE_SECONDS)",
    re.IGNORECASE,
)
"""The variables of this shell that code and programs of a revision get. A list of those that it does not get would miss
some: a secret may have any name."""

HUB_TOKENS = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}

SSH = "ssh -oBatchMode=yes -oConnectTimeout=30"

SHOWN_LINES = 20
"""Of what a program that failed has printed."""


def run_python(python: Path, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
    """Run a program of Python to its end, with its output in this terminal; its exit code.

    A signal that asks to end is passed on, and the program's end is waited for: it saves what it has.
    """
    process = subprocess.Popen(
        [str(python), *arguments],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        pass_fds=held_locks(),
    )
    asked_to_end = False

    def pass_on(number: int, frame: Any) -> None:
        nonlocal asked_to_end
        asked_to_end = True
        process.send_signal(number)

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.wait()  # the terminal has sent it to the program too
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if asked_to_end:
        raise SystemExit(EXIT_TERMINATED)
    return code


def output(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, *, lines: int = 1
) -> str:
    """What a short program prints. Raises UserError with its own last lines where it fails."""
    done = run_quietly(command, folder, environment)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        shown = "\n".join(said[-lines:])
        separator = "\n" if lines > 1 else " "
        raise UserError(without_credentials(f"{shlex.join(command[:4])} ... in {folder}:{separator}{shown}"))
    return done.stdout


def run_quietly(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a short program; what it prints is kept. Unless told otherwise it gets no secrets, and asks for none."""
    own = without_secrets() if environment is None else environment
    return subprocess.run(
        command, cwd=folder, env=dict(own), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def without_secrets(granted: Collection[str] = (), also: str = "") -> dict[str, str]:
    """The variables of this shell that hold no secret, those that the user grants, and those that begin with `also`.

    Git asks for no password, and the Hub's client takes none from the user's home.
    """
    here = os.environ.items()
    values = {name: value for name, value in here if KEPT.fullmatch(name) and credential_in(value) is None}
    values |= {name: value for name, value in here if name in granted or (also and name.startswith(also))}
    values = {"GIT_SSH_COMMAND": SSH} | values | {"GIT_TERMINAL_PROMPT": "0"}
    return values if HUB_TOKENS & set(granted) else values | {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}


@contextmanager
def only_reproduction_in(work: Path) -> Iterator[None]:
    """The right to work in a folder. Waits while another one, or what a killed one left running, has it.

    Raises UserError where the folder holds something else.
    """
    if work.exists() and not (work / MARK).exists() and (not work.is_dir() or any(work.iterdir())):
        raise UserError(
            f"{work}: is there, and is no folder of a reproduction; choose a new or an empty one with --folder"
        )
    private_state_dir()  # in which DVC keeps what it knows of the checkout's files
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    (work / MARK).touch()
    with run_lock("`parrotflow reproduce`", wait=True, folder=work):
        yield


def failed(code: int) -> type[UserError]:
    """The error of a program that ended with a code: where a service did not answer, that is passed on."""
    return UnavailableError if code == EXIT_UNAVAILABLE else UserError
