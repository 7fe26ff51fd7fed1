"""The ledger of cleaning: a row for each collected document with its features, `verdict` and `side`."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from stages.formats.documents import read_table
from stages.runtime.entry import UserError

KEPT = "kept"
"""The verdict on a document that nothing dropped."""


def read_ledger(folder: Path, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Some or all columns of the last run's ledger. Raises UserError if there is none."""
    shards = sorted(folder.glob("b*.parquet"))
    if not shards:
        raise UserError(f"{folder}: no ledger; run `dvc repro clean`")
    ledger: pd.DataFrame = pd.concat([read_table(shard, columns).to_pandas() for shard in shards], ignore_index=True)
    return ledger
