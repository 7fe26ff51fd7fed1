"""The report of an evaluation that the card does not know: it says itself what it measured, in what, and over how much.

A stage that writes `Measurements` to `reports/NAME.json`, with the file among its own plots and among `card`'s deps in
dvc.yaml, has its table in the model card and its entries in the Hub's model-index.
"""

import json
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from stages.formats.reports import REPORTS, Report
from stages.runtime.errors import UserError


class TableMetric(BaseModel, frozen=True, extra="forbid"):
    """One number of a table."""

    label: str
    """As people read it."""
    unit: str = ""
    value: float | None
    """Null where it is not a number."""
    interval_95: tuple[float, float] | None = None
    over: int
    """The number of documents, problems or questions behind the value."""


class Measurements(Report):
    """Metrics, and what they belong to."""

    stage: ClassVar[str] = "card"  # which runs after all of them

    format: Literal["measurements"] = "measurements"
    title: str
    """The title of the card's section: the evaluation's name."""
    data_set: str
    """The data set, as the Hub names it; else a name of one's own."""
    counted: str
    """The items that a metric is computed over, in the plural: `documents`."""
    convention: str
    """How the metrics were computed, in prose."""
    weights_sha256: str = Field(min_length=1)
    """The weights of the model that was measured."""
    versions: dict[str, str]
    """Library -> version, of those that computed the metrics."""
    metrics: dict[str, TableMetric]
    """By name."""


def read_measurements(folder: Path = REPORTS) -> dict[Path, Measurements]:
    """The reports of this kind in a folder: those that say so.

    Raises UserError that names a report that is no JSON, or the first field that is missing or wrong.
    """
    found = {}
    for report in sorted(folder.glob("*.json")):
        try:
            content = json.loads(report.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{report}: cannot be read ({error}); run `dvc repro {Measurements.stage}`") from None
        if isinstance(content, dict) and content.get("format") == "measurements":
            found[report] = Measurements.read(report)
    return found
