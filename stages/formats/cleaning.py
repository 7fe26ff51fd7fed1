"""What cleaning says of its work, besides the documents: the ledger and the preview.

The ledger has a row for each collected document with its features, `verdict`, `because` and `split`. The preview has a
few examples of what was dropped, cut short, for the page about the corpus. They come from the corpus: none is markup.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pandas as pd
from pydantic import BaseModel

from stages.formats.documents import read_table
from stages.formats.reports import Report
from stages.runtime.errors import UserError

LEDGER = Path("data/clean/ledger")

CORPUS_PAGE = Path("data/corpus.html")

KEPT = "kept"
"""The verdict on a document that nothing dropped."""


def read_ledger(columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Some or all columns of the ledger of the last run. Raises UserError if there is none."""
    shards = sorted(LEDGER.glob("b*.parquet"))
    if not shards:
        raise UserError(f"{LEDGER}: no ledger; run `dvc repro clean`")
    ledger: pd.DataFrame = pd.concat([read_table(shard, columns).to_pandas() for shard in shards], ignore_index=True)
    return ledger


class Dropped(BaseModel, frozen=True, extra="forbid"):
    """A document that was dropped."""

    source: str
    path: str
    bytes: int
    because: str
    """What decided, beyond the verdict: the document that it resembles, the passage that it has."""
    beginning: str
    """Its first characters."""
    is_all: bool
    """Whether they are the whole document."""


class DroppedBy(BaseModel, frozen=True, extra="forbid"):
    """Examples of one verdict."""

    verdict: str
    documents: int
    """That have this verdict."""
    examples: list[Dropped]


class Preview(Report):
    """What `clean` shows of its work."""

    path: ClassVar[Path] = Path("data/clean/preview.json")
    stage: ClassVar[str] = "clean"

    dropped: list[DroppedBy]
    """The verdict with the most documents first."""
