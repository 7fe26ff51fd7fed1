"""The index of a revision: `provenance.json`. What it was made from, and the hash of every file."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from stages.formats.reports import write_json


class GitState(BaseModel):
    """The commit that was checked out when the revision was published, and what differed from it."""

    model_config = ConfigDict(frozen=True)

    commit: str
    dirty: bool
    """Whether files differed from the commit. What the pipeline writes itself does not count."""
    changed: list[str]
    """Tracked files that differed; at most 100."""
    untracked: int
    """How many files git did not know. Their names are not published."""
    origin: str | None = None
    """The URL of the remote repository, without credentials; None where there is none."""
    on_remote: bool = False
    """Whether the remote repository had the commit, as far as this clone knew."""
    folder: str = ""
    """The project's folder in the repository; empty where it is the root."""


class LeftOut(BaseModel):
    """A file that the code needs and that is not in the source archive."""

    model_config = ConfigDict(frozen=True)

    path: str
    reason: str


class SourceArchive(BaseModel):
    """What `record/source.tar.gz` holds: the code of a revision that the commit alone does not have."""

    model_config = ConfigDict(frozen=True)

    sha256: str
    files: dict[str, str]
    """File -> sha256."""
    whole: bool
    """True: every file that a run needs. False: only what is to be laid over a checkout of the commit."""
    deleted: list[str]
    """Tracked files that the tree did not have; only where it is not whole."""


class Provenance(BaseModel):
    """What a revision was made from: code, parameters, data, versions, hardware."""

    model_config = ConfigDict(frozen=True)

    revision: str
    files: dict[str, str]
    """File of the revision -> sha256, without this file, the statement and the signature."""
    weights_sha256: str
    git: GitState | None
    """None outside a git repository."""
    source: SourceArchive | None = None
    """None where the commit has all the code."""
    left_out: list[LeftOut] = []
    """What the code needs and is in neither the commit nor the archive."""
    not_recorded: list[str] = []
    """What this record should hold and does not, in words: e.g. how the training was executed."""
    pipeline: list[dict[str, Any]]
    """The stages that led to the model, as dvc.lock records them: command, parameters, hashes of inputs and outputs."""
    not_in_lock: list[str]
    """Inputs of this publication that no stage in dvc.lock has made."""
    publish: dict[str, Any]
    """The parameters of this publication."""
    versions: dict[str, str]
    """Library -> locked version."""
    training: dict[str, str | int | float | bool | None] | None
    """Hardware, processes, threads, precision and speed of the run that made these weights; None if not recorded."""
    published_from: dict[str, str | int | None]
    """Python, system and cores of the machine that published."""


def write_provenance(path: Path, provenance: Provenance) -> None:
    """Write `provenance.json`."""
    write_json(path, provenance.model_dump(mode="json"))


def read_provenance(path: Path) -> Provenance | None:
    """Read `provenance.json`; None where there is none of this format."""
    try:
        return Provenance.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
