"""Verifies a revision that lies in a folder: is every file what its provenance says?"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stages.formats.model_folder import weights_sha256
from stages.formats.revision.execution import read_execution
from stages.formats.revision.layout import EXECUTION, NOT_INDEXED, PROVENANCE, STATEMENT, revision_name
from stages.formats.revision.provenance import Provenance, read_provenance
from stages.formats.revision.statement import differing_subjects, read_statement
from stages.runtime.entry import UserError
from stages.runtime.hashes import file_sha256

OF_THE_HUB = (".gitattributes", ".cache")
"""What the Hub and its client add to a folder."""

IN_WORDS = {
    "missing": "is missing",
    "differs": "differs from what was published",
    "unlisted": "is not of this revision",
    "unreadable": "cannot be read",
    "unbound": "belongs to other weights",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A file of a revision that is not as it was published."""

    path: str
    problem: Literal["missing", "differs", "unlisted", "unreadable", "unbound"]
    expected: str | None = None
    """The sha256 that it should have."""
    found: str | None = None

    def __str__(self) -> str:
        """In words, with the first digits of the hashes."""
        hashes = f": expected {self.expected[:16]}, found {self.found[:16]}" if self.expected and self.found else ""
        return f"{self.path} {IN_WORDS[self.problem]}{hashes}"


def verify_files(folder: Path) -> list[Fault]:
    """All faults of the revision in `folder`; none where it is intact.

    Every file has the hash that the provenance lists, none is missing, none is there besides, the revision's name
    follows from the hashes, and the execution facts belong to the weights. An intact revision may still have been
    written by someone else: that needs a signature.
    """
    provenance = read_provenance(folder / PROVENANCE)
    if provenance is None:
        return [Fault(PROVENANCE, "unreadable" if (folder / PROVENANCE).exists() else "missing")]
    return [
        *_wrong_files(folder, provenance),
        *_unlisted(folder, provenance),
        *_unbound(folder, provenance),
        *_unsaid(folder, provenance),
    ]


def _wrong_files(folder: Path, provenance: Provenance) -> Iterator[Fault]:
    for path, expected in sorted(provenance.files.items()):
        # A path out of the folder is never read. Links are: the Hub's client keeps a revision as links to its cache.
        if Path(path).is_absolute() or ".." in Path(path).parts or not (folder / path).is_file():
            yield Fault(path, "missing", expected)
        elif (found := file_sha256(folder / path)) != expected:
            yield Fault(path, "differs", expected, found)


def _unlisted(folder: Path, provenance: Provenance) -> Iterator[Fault]:
    known = provenance.files.keys() | NOT_INDEXED
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder)
        if not file.is_dir() and path.as_posix() not in known and path.parts[0] not in OF_THE_HUB:
            yield Fault(path.as_posix(), "unlisted")


def _unbound(folder: Path, provenance: Provenance) -> Iterator[Fault]:
    if (name := revision_name(provenance.files)) != provenance.revision:
        yield Fault(PROVENANCE, "differs", provenance.revision, name)
    try:
        weights = weights_sha256(folder)
    except UserError:
        return  # missing, which is a fault already
    if weights != provenance.weights_sha256:
        yield Fault(PROVENANCE, "unbound", provenance.weights_sha256, weights)
    if EXECUTION not in provenance.files or not (folder / EXECUTION).is_file():
        return
    execution = read_execution(folder / EXECUTION)
    if execution is None:
        yield Fault(EXECUTION, "unreadable")
    elif execution.weights_sha256 != weights:
        yield Fault(EXECUTION, "unbound", execution.weights_sha256, weights)


def _unsaid(folder: Path, provenance: Provenance) -> Iterator[Fault]:
    if not (folder / STATEMENT).is_file():
        return
    statement = read_statement(folder / STATEMENT)
    if statement is None:
        yield Fault(STATEMENT, "unreadable")
    elif differing_subjects(statement, provenance, file_sha256(folder / PROVENANCE)):
        yield Fault(STATEMENT, "differs")
