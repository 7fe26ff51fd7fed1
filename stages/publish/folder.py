"""Publishes to a folder: `NAME/revisions/REVISION` is kept for good, the link `NAME/main` leads to the current one."""

import shutil
from pathlib import Path

from stages.formats.revision.layout import MAIN, REVISIONS
from stages.formats.revision.receipt import Receipt
from stages.publish.gate import Gate, published_evaluation
from stages.publish.revision import Revision
from stages.runtime.atomic import atomic_folder, flush_to_disk
from stages.runtime.entry import UserError
from stages.runtime.hashes import file_sha256


def publish_to_folder(revision: Revision, location: Path, gate: Gate) -> Receipt:
    """Copy a revision below `location`, unless it is there, and let `main` lead to it.

    Raises RefusedError if what `main` leads to now is better, UserError if a revision of that name has other content.
    """
    main, kept = location / MAIN, location / REVISIONS / revision.name
    if main.exists() and main.resolve() != kept.resolve():
        gate.check_not_worse(published_evaluation(main), location.as_posix())
    if kept.is_dir():
        require_intact(kept, revision)
    else:
        with atomic_folder(kept) as folder:
            for path, file in revision.files.items():
                copy(file, folder / path)
            require_intact(folder, revision)
    link(main, Path(REVISIONS) / revision.name)
    return Receipt(destination="folder", location=location.as_posix(), revision=revision.name, sha256=revision.sha256)


def copy(source: Path, target: Path) -> None:
    """Copy a file. An error names the target: shutil's names the source, whose disk is not the one that is full."""
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error


def require_intact(folder: Path, revision: Revision) -> None:
    """Compare each file with its sha256. Raises UserError that names the first that differs."""
    for path, expected in revision.sha256.items():
        if not (folder / path).is_file() or file_sha256(folder / path) != expected:
            raise UserError(
                f"{folder / path}: differs from what was published as this revision; delete {folder} and run "
                "`dvc repro -f publish`"
            )


def link(path: Path, target: Path) -> None:
    """Make `path` a relative link to `target`. At each instant there is the old link or the new one."""
    if path.is_symlink() and path.readlink() == target:
        return
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(target, target_is_directory=True)
    partial.replace(path)
    flush_to_disk(path.parent)
