"""Publishes to a folder: `NAME/revisions/REVISION` is kept forever, and the link `NAME/main` points to the current one.

Files are read-only, and revisions share none, so damage to one affects no other.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stages.formats.evaluation.report import Evaluation
from stages.formats.revision.provenance import EVALUATION, MAIN, PROVENANCE, REVISIONS, Receipt
from stages.formats.revision.statement import Provenance
from stages.formats.revision.verify import verify_files
from stages.publish.revision import Gate, Revision, attested
from stages.runtime.atomic import atomic_folder, flush_to_disk
from stages.runtime.errors import UserError


def publish_to_folder(revision: Revision, location: Path, gate: Gate) -> Receipt:
    """Store a revision in `location`, unless it is there, and point `main` to it. It is signed if a key is set.

    Raises RefusedError if the current `main` is better, UserError if the stored revision was changed.
    """
    kept = location / REVISIONS / revision.name
    with only_writer(location):
        before = main_of(location)
        if before not in (None, revision.name):
            gate.check_not_worse(Evaluation.find(location / MAIN / EVALUATION), location.as_posix())
        if kept.is_dir():
            if faults := verify_files(kept):
                raise UserError(f"{kept}: {faults[0]}; delete that folder and run `dvc repro -f -s publish`")
            attested(kept / PROVENANCE)
        else:
            store(revision, kept)
        link(location / MAIN, Path(REVISIONS) / revision.name)
    return Receipt(destination="folder", location=location.as_posix(), revision=revision.name)


@contextmanager
def only_writer(location: Path) -> Iterator[None]:
    """A lock for changes at `location`: other processes wait. The kernel releases it if this process dies."""
    location.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(location, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def main_of(location: Path) -> str | None:
    """The name of the revision that `main` points to, even if that was deleted; None if there is no `main`.

    Raises UserError if `main` is not a link, because a copy of the folder lost it.
    """
    main = location / MAIN
    if main.exists() and not main.is_symlink():
        raise UserError(
            f"{main}: is no longer a link: a copy of {location} lost it (`cp -a` and `rsync -a` keep links); delete "
            "it, then run `parrotflow published promote REVISION`"
        )
    return main.resolve().name if main.is_symlink() else None


def store(revision: Revision, target: Path) -> None:
    """Copy a revision to the folder `target`, all or nothing."""
    with atomic_folder(target) as folder:
        index = Provenance.read(revision.files[PROVENANCE])
        for path, file in revision.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            copied = copy(file, folder / path)
            if index.files.get(path, copied) != copied:
                raise UserError(f"{file}: changed while it was published: run the same command again")
            (folder / path).chmod(0o444)


def copy(source: Path, target: Path) -> str:
    """Copy a file and return the sha256 of the copy. An OSError names the target, whose disk may be full."""
    digest = hashlib.sha256()
    with source.open("rb") as reader:
        try:
            with target.open("wb") as writer:
                while part := reader.read(1 << 22):
                    digest.update(part)
                    writer.write(part)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(target)) from error
    return digest.hexdigest()


def link(path: Path, target: Path) -> None:
    """Atomically make `path` a relative link to `target`."""
    if path.is_symlink() and path.readlink() == target:
        return
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(target, target_is_directory=True)
    partial.replace(path)
    flush_to_disk(path.parent)
