"""Writes the documents of each split, a shard for a shard."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from stages.formats.documents import order_of, read_shard, write_table
from stages.formats.splits import SPLITS
from stages.runtime.cache import cache_key, map_cached, shard_sha256

ShardSplits = tuple[Path, list[str]]
"""One shard, and where each of its rows goes: `train`, `validation` or empty."""


def write_splits(shards: Sequence[Path], ledger: pd.DataFrame, folders: Mapping[str, Path]) -> None:
    """Write each shard's kept documents under its own name. A shard that keeps none for a split has no file there."""
    rows = dict(iter(ledger.groupby("shard")["split"]))
    work = [(shard, list(rows[shard.name])) for shard in shards if shard.name in rows]
    entries = map_cached("splits", work, splits_key, write_shard_splits)
    for (shard, _), entry in zip(work, entries, strict=True):
        for split, folder in folders.items():
            if (entry / split).exists():
                shutil.copyfile(entry / split, folder / shard.name)


def splits_key(item: ShardSplits) -> str:
    """Changes with the data that the files of one shard's splits depend on."""
    shard, splits = item
    return cache_key(shard_sha256(shard), *splits)


def write_shard_splits(item: ShardSplits, folder: Path) -> None:
    """Write one shard's documents as a file per split."""
    shard, splits = item
    documents = read_shard(shard)
    order = order_of(documents)  # masked documents have other ids
    ordered = pa.array(splits).take(order)
    for split in SPLITS:
        kept = order.filter(pc.equal(ordered, split))
        if len(kept):
            write_table(folder / split, documents.take(kept).combine_chunks())
