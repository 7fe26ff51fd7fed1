"""The ledger of cleaning: a row for each collected document with its features, `verdict` and `split`."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from stages.formats.documents import read_table
from stages.runtime.entry import UserError

LEDGER = Path("data/clean/ledger")

KEPT = "kept"
"""The verdict on a document that nothing dropped."""


def read_ledger(columns: Sequence[str] | None = None, folder: Path = LEDGER) -> pd.DataFrame:
    """Some or all columns of the ledger of the last run. Raises UserError if there is none."""
    shards = sorted(folder.glob("b*.parquet"))
    if not shards:
        raise UserError(f"{folder}: no ledger; run `dvc repro clean`")
    ledger: pd.DataFrame = pd.concat([read_table(shard, columns).to_pandas() for shard in shards], ignore_index=True)
    return ledger
