"""The ledger: a row per document with where it comes from, its features and the verdict on it."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from stages.clean.features import measure
from stages.formats.documents import documents_of, read_shard, read_table, write_table
from stages.runtime.cache import map_cached, shard_sha256

FEATURES = "features.parquet"


def measure_shards(shards: Sequence[Path]) -> pd.DataFrame:
    """The features of every document: rows in the order of the shards, a column `shard` with the shard's name.

    What was measured before is taken from the cache: one edited document costs one shard.
    """
    entries = map_cached("features", shards, shard_sha256, _measure_shard)
    frames = [
        read_table(entry / FEATURES).to_pandas().assign(shard=shard.name)
        for shard, entry in zip(shards, entries, strict=True)
    ]
    ledger: pd.DataFrame = pd.concat(frames, ignore_index=True)
    return ledger


def _measure_shard(shard: Path, folder: Path) -> None:
    rows = [
        {"id": document.id, "source": document.source, "revision": document.revision, "path": document.path}
        | {"license": document.license}
        | measure(document.text, document.path)._asdict()
        for document in documents_of(read_shard(shard))
    ]
    write_table(folder / FEATURES, pa.Table.from_pylist(rows))


def write_ledger(folder: Path, ledger: pd.DataFrame) -> None:
    """Write the judged ledger, a Parquet file per shard of documents."""
    for name, rows in ledger.groupby("shard", sort=True):
        table = pa.Table.from_pandas(
            rows.drop(columns=["shard", "representative"]), preserve_index=False
        ).replace_schema_metadata()
        write_table(folder / str(name), table)
