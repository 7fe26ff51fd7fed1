"""The verdict on a segment of a training run, the steps between two of its checkpoints: `--report` of its command."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from stages.formats.reports import write_json


class Compared(BaseModel, frozen=True):
    """A hash on record, and the one that was found."""

    what: str
    """`checkpoint of step 500`, or `weights`."""
    recorded: str
    found: str


class Difference(BaseModel, frozen=True):
    """A fact of the recorded execution that this one does not share."""

    fact: str
    """A field of `Session`, or one of its libraries as `versions.torch`."""
    recorded: str
    here: str


class SegmentReport(BaseModel, frozen=True):
    """What came of computing a segment again."""

    verdict: Literal["equal", "different", "cannot"]
    reason: str
    """In a sentence."""
    from_step: int
    to_step: int
    compared: list[Compared] = []
    """In the order of steps, up to the first one that differs."""
    differences: list[Difference] = []
    seconds: float
    """Of the command, after its imports."""


def write_segment_report(path: Path, report: SegmentReport) -> None:
    """Write it as JSON."""
    write_json(path, report.model_dump(mode="json"))


def read_segment_report(path: Path) -> SegmentReport:
    """Read it."""
    return SegmentReport.model_validate_json(path.read_bytes())
