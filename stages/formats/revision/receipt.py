"""The receipt of a publication: which revision is published where. publish writes it, people and flows read it.

It is in the folder of the published model, so that deleting `published/` deletes the receipt too, and DVC notices.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from stages.formats.reports import write_json


class Receipt(BaseModel):
    """What the last run of publish did."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    destination: Literal["folder", "hub", "none"]
    """`none`: nothing was published."""
    location: str
    """The model's folder, or `owner/name` on the Hub."""
    revision: str | None = None
    """The name of the revision that `main` leads to."""
    commit: str | None = None
    """On the Hub: the commit that the revision's tag names."""
    run: str | None = None
    """The name of the training run (`run_name`); None where its checkpoints' fingerprint is not recorded."""
    steps: dict[int, str] = {}
    """Exported step of that run -> its commit on the Hub, or its folder below the location."""
    others: dict[str, str] = {}
    """Other repositories on the Hub that were published to, `datasets/owner/name` for a data set -> the commit."""
    sha256: dict[str, str] = {}
    """File of the revision -> sha256; without the observed files, which another publication may have otherwise."""
    reason: str | None = None
    """Why nothing was published."""


def write_receipt(path: Path, receipt: Receipt) -> None:
    """Write a receipt, without the fields that have no value; nothing is written where it is there."""
    if not path.exists() or read_receipt(path) != receipt:
        write_json(path, receipt.model_dump(mode="json", exclude_none=True))


def read_receipt(path: Path) -> Receipt:
    """Read a receipt."""
    return Receipt.model_validate_json(path.read_bytes())
