"""Verifies the files of a revision: does each have the hash of the index, and is there nothing else?

`parrotflow published verify` and `parrotflow reproduce` use it, and nothing of a revision is run before. An index says
what its author wants: who that is, a signature says (stages/formats/revision/signature.py), and whether the model is
what its record describes, a reproduction.
"""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from stages.formats.revision.lock import is_outside
from stages.formats.revision.provenance import (
    CARD,
    CURVES,
    NOT_INDEXED,
    PROVENANCE,
    RECORD,
    Provenance,
    is_shipped,
    revision_name,
)
from stages.runtime.atomic import file_sha256
from stages.runtime.entry import UserError


def verify_files(folder: Path, besides: Collection[str] = ()) -> list[str]:
    """All faults of the revision in `folder`, in words; empty if it is intact.

    `besides`: names of files and folders that may be next to its own.
    """
    if links := list(links_in(folder)):
        return links
    if not (folder / PROVENANCE).exists():
        return [f"{PROVENANCE}: is missing"]
    try:
        provenance = Provenance.read(folder / PROVENANCE)
    except UserError as error:
        return [f"{PROVENANCE}: {error}, or use the version of parrotflow that published it"]
    if unknown := [path for path in sorted(provenance.files) if not may_hold(path)]:  # and nothing there is read
        return [f"{path}: is not a file that a revision can hold" for path in unknown]
    found = [*_wrong_files(folder, provenance), *_unlisted(folder, provenance, besides)]
    if (name := revision_name(provenance.files)) != provenance.revision:
        found.append(f"{PROVENANCE}: names itself {provenance.revision}, and its files are {name}")
    return found


def may_hold(path: str) -> bool:
    """Whether a revision can hold a file: the model's own, the card's, or one of the record.

    Code and pickles it cannot hold, since loading the model would run them.
    """
    of_record = path.startswith(f"{RECORD}/") and not is_outside(path)
    return of_record or path in (CARD, CURVES) or is_shipped(path)


def links_in(folder: Path) -> Iterator[str]:
    """Everything that is neither a file nor a folder: a link may lead anywhere, also in a circle.

    In the cache of the Hub's client a snapshot is links to its blobs.
    """
    blobs = folder.resolve().parent.parent / "blobs"
    for directory, folders, files in os.walk(folder):
        for name in sorted((*folders, *files)):
            path = Path(directory, name)
            is_plain = not path.is_symlink() or path.resolve().parent == blobs
            if not is_plain or not (path.is_file() or path.is_dir()):
                yield f"{path.relative_to(folder).as_posix()}: is a link or a special file, which no revision holds"


def _wrong_files(folder: Path, provenance: Provenance) -> Iterator[str]:
    for path, expected in sorted(provenance.files.items()):
        if not (folder / path).is_file():
            yield f"{path}: is missing"
        elif (found := file_sha256(folder / path)) != expected:
            yield f"{path}: differs from what was published: expected {expected[:16]}, found {found[:16]}"


def _unlisted(folder: Path, provenance: Provenance, besides: Collection[str]) -> Iterator[str]:
    known = provenance.files.keys() | NOT_INDEXED
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder).as_posix()
        if path not in known and path.split("/")[0] not in besides and (not file.is_dir() or not any(file.iterdir())):
            yield f"{path}: is not part of this revision"
