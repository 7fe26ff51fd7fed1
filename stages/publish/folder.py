"""Publishes to a folder: `NAME/revisions/<revision>` is kept for good, `NAME/main` leads to the latest."""

import shutil
from pathlib import Path

from stages.publish.revision import Revision
from stages.runtime.atomic import atomic_folder, flush_to_disk
from stages.runtime.entry import UserError
from stages.runtime.hashes import file_sha256


def publish_to_folder(revision: Revision, place: Path) -> None:
    """Bring a revision below `place`, unless it is there, and lead `main` to it.

    Raises UserError if a revision of that name holds something else.
    """
    kept = place / "revisions" / revision.name
    if kept.is_dir():
        require_intact(kept, revision)
    else:
        with atomic_folder(kept) as folder:
            for path, file in revision.files.items():
                shutil.copyfile(file, folder / path)
            require_intact(folder, revision)
    lead_to(place / "main", Path("revisions") / revision.name)


def require_intact(folder: Path, revision: Revision) -> None:
    """Compare each file with its sha256. Raises UserError that names the first that differs."""
    for path, expected in revision.sha256.items():
        if not (folder / path).is_file() or file_sha256(folder / path) != expected:
            raise UserError(
                f"{folder / path}: is not what was published under this revision; delete {folder} and run "
                "`dvc repro -f publish`"
            )


def lead_to(link: Path, target: Path) -> None:
    """Make a relative link, or lead it elsewhere: at each instant there is the old one or the new one."""
    partial = link.with_name(f".{link.name}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(target, target_is_directory=True)
    partial.replace(link)
    flush_to_disk(link.parent)
