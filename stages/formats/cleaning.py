"""The report of the cleaning: `reports/clean.json`."""

from typing import ClassVar

from pydantic import BaseModel

from stages.formats.reports import REPORTS, Report
from stages.formats.sources import Amount


class SplitCount(BaseModel, frozen=True, extra="forbid"):
    """Documents that were kept."""

    documents: int
    bytes: int
    sources: int


class SearchedItems(BaseModel, frozen=True, extra="forbid"):
    """Items of evaluation sets, by how the corpus was searched for them."""

    by_ngrams: int
    whole: int
    not_searched: int


class CleanReport(Report):
    """How much was kept, masked and dropped."""

    path: ClassVar = REPORTS / "clean.json"
    stage: ClassVar = "clean"

    documents: int
    """Collected, as `bytes`."""
    bytes: int
    kept: SplitCount
    train: SplitCount
    validation: SplitCount
    held_out_of_trained_files: int
    """Held-out documents that are parts or rows of files that are trained on too."""
    masked: dict[str, int]
    """Kind of value -> how many were masked in the kept documents; `documents`: the documents that have any."""
    dropped: dict[str, Amount]
    """Verdict -> what it dropped."""
    evaluation_items: SearchedItems | None
    """Null without decontamination."""
