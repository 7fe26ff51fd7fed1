"""Whose code a reproduction is about to run: its signature, and the consent that is asked before any of it runs."""

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from flows.reproduce.commands import run_quietly
from flows.reproduce.revision import Revision
from stages.formats.revision.layout import (
    RECORDED_ACCEPTED,
    RECORDED_LOCK,
    RECORDED_PARAMS,
)
from stages.formats.revision.verify import verify_signature
from stages.runtime.entry import UserError
from stages.runtime.stage_code import stage_codes

OWN = Path("published")
"""Where this project's own revisions are."""

NO_CODE = {Path(path).name for path in (RECORDED_PARAMS, RECORDED_LOCK, RECORDED_ACCEPTED)}
"""Files of the record that replace those of the commit, and of which nothing is run."""

NOT_OF_THE_COMMIT = {".git", ".dvc/config.local", ".dvc/tmp", ".dvc/cache"}
"""What the checkout has besides the recorded code."""


def check_signature(asked: str, folder: Path, key: Path | None) -> str:
    """What is known of the signature, in words.

    Raises UserError where it is not valid, or a key is named, here or by PARROTFLOW_TRUSTED_KEY, and the revision is
    not signed by it.
    """
    found = verify_signature(folder, key)
    if not found.is_acceptable(key):
        raise UserError(f"{asked}: {found}")
    return str(found)


def require_consent(revision: Revision, checkout: Path, signature: str, *, yes: bool) -> None:
    """Say whose code is about to run, and ask for a yes in the terminal.

    The code of this repository's own commits needs none. Raises UserError without a yes.
    """
    if is_own_code(revision, checkout):
        return
    print(f"\nThis runs the code of someone else on this machine: {whose_code(revision, signature)}.", flush=True)
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"{revision.asked}: its code needs a yes, and there is no terminal to ask in: read it "
            f"({checkout}), then give --yes"
        )
    if input("Run it? [y/N] ").strip().lower() not in ("y", "yes"):
        raise UserError(f"{revision.asked}: its code was not run; it is in {checkout}")


def whose_code(revision: Revision, signature: str) -> str:
    """Origin, commit and signature, as far as the record says."""
    git, archive = revision.provenance.git, revision.provenance.source
    origin = (git.origin if git else None) or "of unknown origin"
    commit = f"commit {git.commit}" if git else "no commit"
    files = len(archive.files) if archive else 0
    own = f" with {files} files from the revision itself" if files else ""
    return f"{origin}, {commit}{own}; {signature}"


def is_own_code(revision: Revision, checkout: Path) -> bool:
    """Whether a revision in this project's `published/` runs exactly what a commit on one of its branches holds.

    Every file is compared, also dvc.yaml with its commands and the lock with its libraries: a revision can name a
    commit and bring other code.
    """
    git = revision.provenance.git
    if git is None or not Path(revision.asked).resolve().is_relative_to(OWN.resolve()):
        return False
    branches = run_quietly(["git", "for-each-ref", "--contains", git.commit, "refs/heads"], Path.cwd())
    if branches.returncode or not branches.stdout.strip():
        return False
    tree = run_quietly(["git", "ls-tree", "-r", "-z", f"{git.commit}:{git.folder}"], Path.cwd())
    entries = (entry.partition("\t") for entry in tree.stdout.split("\0") if entry)
    committed = {path: about.split()[2] for about, _, path in entries if path not in NO_CODE}
    return tree.returncode == 0 and committed == dict(blobs(checkout))


def blobs(folder: Path) -> Iterator[tuple[str, str]]:
    """Each file of a checkout with the hash that git has of its content."""
    ours = NO_CODE | {path.as_posix() for path in stage_codes(folder)}
    for file in folder.rglob("*"):
        path = file.relative_to(folder).as_posix()
        besides = any(path == name or path.startswith(f"{name}/") for name in NOT_OF_THE_COMMIT)
        if besides or path in ours or (file.is_dir() and not file.is_symlink()):
            continue
        content = os.fsencode(file.readlink()) if file.is_symlink() else file.read_bytes()
        header = b"blob %d\0" % len(content)
        yield path, hashlib.sha1(header + content, usedforsecurity=False).hexdigest()
