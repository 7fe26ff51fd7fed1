"""A published revision: the names of its files, and its provenance, which says what the model was made from.

    model.safetensors, config.json, tokenizer.json, ...   as in the model folder
    README.md          the model card
    evaluation.json    the evaluation report
    evaluation_receipt.json   what it was measured on, and how
    provenance.json    `Provenance`

In a folder destination a revision is in `revisions/NAME`, and the link `main` leads to the current one. On the Hub it
is the commit with the tag NAME.
"""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from stages.formats.reports import write_json

CARD = "README.md"
EVALUATION = "evaluation.json"
EVALUATION_RECEIPT = "evaluation_receipt.json"
PROVENANCE = "provenance.json"

REVISIONS = "revisions"
MAIN = "main"


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


class Provenance(BaseModel):
    """What a revision was made from: code, parameters, data, versions, hardware."""

    model_config = ConfigDict(frozen=True)

    revision: str
    files: dict[str, str]
    """File of the revision -> sha256, this file excepted."""
    weights_sha256: str
    git: GitState | None
    """None outside a git repository."""
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
