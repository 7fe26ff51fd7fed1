"""The data that a revision was made from: `record/inputs.json`. Names, hashes, licences, and where the bytes are."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from stages.formats.reports import write_json


class Place(BaseModel):
    """Where bytes can be had from."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["commit", "source archive", "record", "dvc remote", "package", "hub", "url", "local"]
    """`commit`: the git commit of the provenance. `record`: below `record/data/` of the revision. `local`: only the
    project itself is known to have it."""
    address: str | None = None
    """Of a DVC remote or URL, without credentials; `name==version` of a package; `repository@commit` on the Hub."""


class Dependency(BaseModel):
    """A file or folder that stages depend on and that none makes; code excepted."""

    model_config = ConfigDict(frozen=True)

    path: str
    md5: str
    """As dvc.lock records it; of a folder that of DVC's listing, with `.dir` at its end; of a URL the server's tag."""
    bytes: int
    files: dict[str, str]
    """File -> sha256, by its path from the project's root; at most `MOST_FILES`."""
    not_listed: int
    """Files of a folder beyond those."""
    edited: bool = False
    """Whether it was changed after the stages had run; then no file is listed."""
    places: list[Place]


class Amount(BaseModel):
    """An amount of text."""

    model_config = ConfigDict(frozen=True)

    documents: int
    bytes: int


class Source(BaseModel):
    """A source of documents, and what of it the model was trained and validated on."""

    model_config = ConfigDict(frozen=True)

    name: str
    revision: str
    """A version, a commit, or the user's own text."""
    kind: str
    """As `collect.sources` names it; empty where that is not recorded."""
    documents: int
    bytes: int
    """UTF-8 bytes of the documents' text, as they were tokenized."""
    sha256: str
    """Of the documents' ids, sorted, one a line."""
    licenses: dict[str, Amount]
    """SPDX expression, or empty where none is known -> amount."""
    places: list[Place]


class InputListing(BaseModel):
    """All data that went into a revision."""

    model_config = ConfigDict(frozen=True)

    sources: list[Source]
    dependencies: list[Dependency]
    remote: str | None = None
    """The URL of the project's default DVC remote, without credentials; it has what the stages made, if that was
    pushed. None where there is none, or a folder of one machine."""


MOST_FILES = 10_000
"""Of one folder, that are listed by name."""


def write_inputs(path: Path, listing: InputListing) -> None:
    """Write it as JSON."""
    write_json(path, listing.model_dump(mode="json"))


def read_inputs(path: Path) -> InputListing | None:
    """Read it; None where there is none of this format."""
    try:
        return InputListing.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
