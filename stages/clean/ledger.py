"""The ledger: a row per document with where it comes from, its features and the verdict on it."""

import platform
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa

from stages.clean import features
from stages.clean.features import measure
from stages.formats.documents import documents_of, read_shard, read_table, write_table
from stages.formats.hashes import file_sha256
from stages.formats.shard_cache import cache_key, cached, code_key
from stages.formats.workers import map_shards

FEATURES = "features.parquet"


def measure_shards(shards: Sequence[Path]) -> pd.DataFrame:
    """The features of every document: rows in the order of the shards, a column `shard` with the shard's name.

    What was measured before is taken from the cache: one edited document costs one shard.
    """
    code = cache_key(code_key([features.__file__, __file__]), platform.python_version())
    tables = map_shards(partial(shard_features, code=code), shards)
    frames = [table.to_pandas().assign(shard=shard.name) for shard, table in zip(shards, tables, strict=True)]
    ledger: pd.DataFrame = pd.concat(frames, ignore_index=True)
    return ledger


def shard_features(shard: Path, code: str) -> pa.Table:
    """The features of one shard's documents, in its order."""
    entry = cached("features", cache_key(code, file_sha256(shard)), partial(_measure_shard, shard))
    return read_table(entry / FEATURES)


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
            rows.drop(columns=["shard", "stands_for_it"]), preserve_index=False
        ).replace_schema_metadata()
        write_table(folder / str(name), table)
