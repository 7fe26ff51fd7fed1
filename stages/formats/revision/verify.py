"""Verifies a revision in a folder: is every file what its index says, and does the record agree with itself?

`parrotflow published verify` and `parrotflow reproduce` ask the same, and nothing is run before they have the answer.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from stages.formats.model_folder import weights_sha256
from stages.formats.revision.consistency import inconsistencies
from stages.formats.revision.execution import Execution
from stages.formats.revision.layout import EXECUTION, NOT_INDEXED, PROVENANCE, revision_name
from stages.formats.revision.lock import Fault, is_outside
from stages.formats.revision.provenance import Provenance, is_undamaged
from stages.runtime.entry import UserError
from stages.runtime.hashes import file_sha256

OLDER = (
    "has no checksum: it was written by an older version of parrotflow; delete the revision and run "
    "`dvc repro -f -s publish`"
)


def verify_files(folder: Path) -> list[Fault]:
    """All faults of the revision in `folder`; none where it is intact.

    Every file has the hash that the provenance lists, none is missing, none is there besides, the revision's name
    follows from the hashes, the execution facts belong to the weights, and every output of a stage has the hash that
    the recorded dvc.lock has (`inconsistencies`). An intact revision may still have been written by someone else: that
    needs a signature.
    """
    links = list(links_in(folder))
    provenance = None if links else Provenance.find(folder / PROVENANCE)
    if provenance is None:
        return links or [Fault(PROVENANCE, "unreadable" if (folder / PROVENANCE).exists() else "missing")]
    if not provenance.checksum:
        return [Fault(PROVENANCE, "unreadable", OLDER)]
    if not is_undamaged(folder / PROVENANCE, provenance):
        return [Fault(PROVENANCE, "differs", "its checksum is that of other content")]
    outside = [Fault(path, "missing") for path in sorted(provenance.files) if is_outside(path)]
    if outside:
        return outside  # and nothing there is read
    found = [
        *_wrong_files(folder, provenance),
        *_unlisted(folder, provenance),
        *_unbound(folder, provenance),
    ]
    named = {fault.path for fault in found}
    return [*found, *(fault for fault in inconsistencies(folder, provenance) if fault.path not in named)]


def links_in(folder: Path) -> Iterator[Fault]:
    """Everything that is neither a file nor a folder: a link may lead anywhere, also in a circle.

    In the cache of the Hub's client a snapshot is links to its blobs.
    """
    blobs = folder.resolve().parent.parent / "blobs"
    for directory, folders, files in os.walk(folder):
        for name in sorted((*folders, *files)):
            path = Path(directory, name)
            is_plain = not path.is_symlink() or path.resolve().parent == blobs
            if not is_plain or not (path.is_file() or path.is_dir()):
                yield Fault(path.relative_to(folder).as_posix(), "link")


def _wrong_files(folder: Path, provenance: Provenance) -> Iterator[Fault]:
    for path, expected in sorted(provenance.files.items()):
        if not (folder / path).is_file():
            yield Fault(path, "missing")
        elif (found := file_sha256(folder / path)) != expected:
            yield Fault(path, "differs", f"expected {expected[:16]}, found {found[:16]}")


def _unlisted(folder: Path, provenance: Provenance) -> Iterator[Fault]:
    known = provenance.files.keys() | NOT_INDEXED
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder).as_posix()
        if path not in known and (not file.is_dir() or not any(file.iterdir())):
            yield Fault(path, "unlisted")


def _unbound(folder: Path, provenance: Provenance) -> Iterator[Fault]:
    if (name := revision_name(provenance.files)) != provenance.revision:
        yield Fault(PROVENANCE, "differs", f"names itself {provenance.revision}, and its files are {name}")
    try:
        weights = weights_sha256(folder)
    except UserError:
        return  # missing, which is a fault already
    if weights != provenance.weights_sha256:
        yield Fault(PROVENANCE, "unbound", f"expected {provenance.weights_sha256[:16]}, found {weights[:16]}")
    if EXECUTION not in provenance.files or not (folder / EXECUTION).is_file():
        return
    execution = Execution.find(folder / EXECUTION)
    if execution is None:
        yield Fault(EXECUTION, "unreadable")
    elif execution.weights_sha256 != weights:
        yield Fault(EXECUTION, "unbound", f"expected {execution.weights_sha256[:16]}, found {weights[:16]}")
