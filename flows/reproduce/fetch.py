"""A published revision -> `WORK/revision`: from a folder or the Hugging Face Hub, and whether it may be used.

It is other people's: its files are as published, and before any of its code runs it is said whose that is, and asked.
"""

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.reproduce.commands import run_quietly
from flows.reproduce.revision import RecordedRevision, read_revision, require_made
from stages.formats.revision.provenance import (
    MAIN,
    NOT_INDEXED,
    PROVENANCE,
    RECORDED_ACCEPTED,
    RECORDED_LOCK,
    RECORDED_PARAMS,
    Provenance,
)
from stages.formats.revision.verify import verify_files, verify_signature
from stages.runtime.atomic import atomic_folder
from stages.runtime.entry import STATE_DIR, UserError
from stages.runtime.hub import explained
from stages.runtime.stage_code import stage_codes

WORK = STATE_DIR / "reproduce"
"""Here each revision has the folder in which it is reproduced."""

FETCHED = "revision"

HUB_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+?)(@(?P<revision>[\w./-]+))?")

OF_THE_HUB = (".gitattributes", ".cache")
"""What the Hub and its client add to the files of a revision."""

OWN = Path("published")
"""Where this project's own revisions are."""

NO_CODE = {Path(path).name for path in (RECORDED_PARAMS, RECORDED_LOCK, RECORDED_ACCEPTED)}
"""Files of the record that replace those of the commit, and of which nothing is run."""

NOT_OF_THE_COMMIT = {".git", ".dvc/config.local", ".dvc/tmp", ".dvc/cache"}
"""What the checkout has besides the recorded code."""


def work_folder(asked: str, found: Path, given: Path | None) -> Path:
    """Where a revision is reproduced. Raises UserError where what the user names is damaged or no revision."""
    provenance = Provenance.find(found / PROVENANCE)
    if provenance is None:
        raise UserError(f"{asked}: holds no {PROVENANCE} that can be read, so it is no revision of parrotflow")
    require_intact(asked, found)
    return (given or WORK / provenance.revision).absolute()


def keep(asked: str, found: Path, work: Path) -> RecordedRevision:
    """Copy the revision into the work folder, unless it is there, and read it.

    Raises UserError that names the file where it is damaged or is not what its record says.
    """
    kept = work / FETCHED
    if not kept.exists():
        with atomic_folder(kept) as partial:
            shutil.copytree(found, partial, dirs_exist_ok=True, copy_function=shutil.copyfile)
    elif (kept / PROVENANCE).read_bytes() != (found / PROVENANCE).read_bytes():
        raise UserError(
            f"{work}: another revision, or another publication of this one, is reproduced there; "
            "choose another folder with --folder, or delete that one"
        )
    else:
        take_signature(found, kept)
    require_intact(asked, kept)
    revision = read_revision(asked, kept)
    require_made(revision)
    return revision


def take_signature(found: Path, kept: Path) -> None:
    """Let the copy of an earlier start have what the revision has now besides its indexed files: a signature may have
    been added or removed since."""
    for name in NOT_INDEXED - {PROVENANCE}:
        if (found / name).is_file():
            shutil.copyfile(found / name, kept / name)
        else:
            (kept / name).unlink(missing_ok=True)


def require_intact(asked: str, folder: Path) -> None:
    """Raise UserError that names the files that are not as they were published."""
    faults = verify_files(folder)
    if faults:
        more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise UserError(f"{asked} is damaged: {'; '.join(map(str, faults[:3]))}{more}; fetch it again")


@contextmanager
def opened(asked: str) -> Iterator[Path]:
    """A folder with the files of the revision that a user names, for as long as they are copied."""
    path = Path(asked)
    if path.is_dir():
        # `published/NAME` is where the revisions are; `main` is the current one.
        yield path if (path / PROVENANCE).exists() or not (path / MAIN).exists() else path / MAIN
    elif path.is_file():
        raise UserError(f"{asked}: is a file; unpack it, and name the folder")
    elif found := HUB_NAME.fullmatch(asked):
        with TemporaryDirectory() as temporary:
            yield downloaded(found["repository"], found["revision"] or MAIN, Path(temporary))
    else:
        raise UserError(f"{asked}: no folder, and no owner/name@revision of the Hub")


def downloaded(repository: str, revision: str, folder: Path) -> Path:
    """The files of a revision on the Hub: of a tag, a branch or a commit. Raises as `explained` does."""
    from huggingface_hub import snapshot_download

    try:
        with explained(f"{repository}@{revision}"):
            snapshot_download(repository, revision=revision, local_dir=folder)
    except UserError as error:
        raise type(error)(f"{error}; and there is no such folder here") from None
    for added in OF_THE_HUB:
        shutil.rmtree(folder / added, ignore_errors=True)
        (folder / added).unlink(missing_ok=True)
    return folder


def check_signature(asked: str, folder: Path, key: Path | None) -> str:
    """What is known of the signature, in words.

    Raises UserError where it is not valid, or a key is named, here or by PARROTFLOW_TRUSTED_KEY, and the revision is
    not signed by it.
    """
    found = verify_signature(folder, key)
    if not found.is_acceptable(key):
        raise UserError(f"{asked}: {found}")
    return str(found)


def require_consent(revision: RecordedRevision, checkout: Path, signature: str, *, yes: bool) -> None:
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


def whose_code(revision: RecordedRevision, signature: str) -> str:
    """Origin, commit and signature, as far as the record says."""
    git, archive = revision.provenance.git, revision.provenance.source
    origin = (git.origin if git else None) or "of unknown origin"
    commit = f"commit {git.commit}" if git else "no commit"
    files = len(archive.files) if archive else 0
    own = f" with {files} files from the revision itself" if files else ""
    return f"{origin}, {commit}{own}; {signature}"


def is_own_code(revision: RecordedRevision, checkout: Path) -> bool:
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
