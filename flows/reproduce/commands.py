"""Runs short programs for a reproduction, asks for consent to run its code, and locks its folder."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flows.run.locks import run_lock
from flows.run.terminal import confirmed
from stages.formats.revision.execution import is_computing
from stages.formats.revision.statement import GitState
from stages.runtime.credentials import SECRET_NAMES, credential_in, without_credentials
from stages.runtime.errors import UserError, private_state_dir

if TYPE_CHECKING:
    from flows.reproduce.revision import RecordedRevision

REPRODUCTION_MARK = "parrotflow-reproduce"
"""An empty file that marks the folder of a reproduction."""

NOT_GIVEN = re.compile(
    rf".*({SECRET_NAMES.pattern}).*|(SSH|ACCELERATE|PREFECT)_.*|GIT_(?!SSL_|CONFIG_(GLOBAL|SYSTEM|NOSYSTEM)$).*|"
    "DVC_(?!(NO_ANALYTICS|SITE_CACHE_DIR)$).*|"
    "PARROTFLOW_(?!(WORKERS|STAGES_AT_ONCE|SHARD_CACHE_GB)$).*",
    re.IGNORECASE,
)
"""Variables that a revision's programs do not get, besides those that change the computation: names that look secret,
and those that point git, DVC and the stages to the user's own files."""

SHOWN_LINES = 20
"""How many of the last lines of a failed program are shown."""


def output(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, *, lines: int = 1
) -> str:
    """Run a short program and return its output. Raises UserError with its last lines if it fails."""
    done = run_quietly(command, folder, environment)
    if done.returncode:
        printed = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        shown = "\n".join(printed[-lines:])
        separator = "\n" if lines > 1 else " "
        raise UserError(without_credentials(f"{shlex.join(command[:4])} ... in {folder}:{separator}{shown}"))
    return done.stdout


def run_quietly(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a short program and capture its output. By default it gets no secrets and cannot ask for any."""
    values = without_secrets() if environment is None else environment
    return subprocess.run(
        command, cwd=folder, env=dict(values), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def without_secrets() -> dict[str, str]:
    """The environment without secrets; git asks for no password, and the Hub's client uses no stored token."""
    values = {
        name: value
        for name, value in os.environ.items()
        if not NOT_GIVEN.fullmatch(name) and not is_computing(name) and credential_in(value) is None
    }
    return values | {"GIT_TERMINAL_PROMPT": "0", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}


@contextmanager
def only_reproduction_in(work: Path) -> Iterator[None]:
    """Lock the folder of a reproduction; wait while another one has the lock.

    Raises UserError if the folder has other files.
    """
    if work.exists() and not (work / REPRODUCTION_MARK).exists() and (not work.is_dir() or any(work.iterdir())):
        raise UserError(
            f"{work}: already exists, but is not a reproduction; choose a new or empty folder with --folder"
        )
    private_state_dir()  # DVC keeps its state about the checkout's files here
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    (work / REPRODUCTION_MARK).touch()
    with run_lock("`parrotflow reproduce`", wait=True, folder=work):
        yield


def require_consent(revision: "RecordedRevision", checkout: Path, signature: str, *, yes: bool) -> None:
    """Print whose code is about to run, and ask for confirmation in the terminal. Raises UserError without it."""
    git = revision.provenance.git
    whose = f"{as_recorded(git.origin or 'origin unknown')}, {describe_commit(git)}; {signature}"
    print(f"\nThis runs the revision's code on this machine: {whose}.", flush=True)
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"{revision.asked}: running its code requires confirmation, and there is no terminal: review the code in "
            f"{checkout}, then pass --yes"
        )
    if not confirmed("Run it?"):
        raise UserError(f"{revision.asked}: its code was not run; it is in {checkout}")


def describe_commit(git: GitState) -> str:
    """The commit, and whether files differed from it."""
    return f"commit {as_recorded(git.commit)}" + (" with changes" if git.dirty else "")


def as_recorded(text: str) -> str:
    """A word of the record for a question. Other characters are escaped, so that it cannot imitate the prompt."""
    return text if re.fullmatch("[!-~ ]*", text) and "\n" not in text else ascii(text)
