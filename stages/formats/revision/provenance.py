"""The index of a revision: `provenance.json`. What it was made from, and the hash of every file."""

import hashlib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from stages.formats.reports import write_json
from stages.runtime.hashes import file_sha256


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
    """File of the revision -> sha256, without this file and the signature."""
    folders: dict[str, dict[str, str]] = {}
    """Folder of the project that a stage made -> its files' md5, by their paths in it. DVC names the folder by the hash
    of this listing, so it also has what the revision does not hold: exported steps."""
    checksum: str = ""
    """sha256 of this file as it is with an empty checksum: a damaged byte is found without a signature too."""
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
    """Write `provenance.json` with its checksum."""
    values = provenance.model_dump(mode="json") | {"checksum": ""}
    write_json(path, values)
    write_json(path, values | {"checksum": file_sha256(path)})


def is_undamaged(path: Path, provenance: Provenance) -> bool:
    """Whether the checksum of a `provenance.json` is that of its bytes."""
    content = path.read_bytes().replace(f'"checksum": "{provenance.checksum}"'.encode(), b'"checksum": ""', 1)
    return hashlib.sha256(content).hexdigest() == provenance.checksum


def read_provenance(path: Path) -> Provenance | None:
    """Read `provenance.json`; None where there is none of this format."""
    try:
        return Provenance.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
