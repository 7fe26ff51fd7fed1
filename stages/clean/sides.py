"""The documents of each side, a shard for a shard."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa

from stages.clean.verdicts import TRAIN, VALIDATION
from stages.formats.documents import read_shard, write_table
from stages.formats.hashes import file_sha256
from stages.formats.shard_cache import cache_key, cached, code_key
from stages.formats.workers import map_shards


@dataclass(frozen=True, slots=True)
class ShardSides:
    """One shard and where each of its rows goes."""

    shard: Path
    sides: list[str]
    """In the shard's order: `train`, `validation` or empty."""


def write_sides(shards: Sequence[Path], ledger: pd.DataFrame, train: Path, validation: Path) -> None:
    """Write each shard's kept documents under its own name; a shard that keeps none on a side has no file there."""
    rows = dict(iter(ledger.groupby("shard")["side"]))
    work = [ShardSides(shard, list(rows[shard.name])) for shard in shards if shard.name in rows]
    for item, entry in zip(work, map_shards(cached_sides, work), strict=True):
        for side, folder in ((TRAIN, train), (VALIDATION, validation)):
            if (entry / side).exists():
                shutil.copyfile(entry / side, folder / item.shard.name)


def cached_sides(item: ShardSides) -> Path:
    """The cache's folder with one shard's sides as files."""
    key = cache_key(code_key([__file__]), file_sha256(item.shard), *item.sides)
    return cached("sides", key, partial(_write_shard_sides, item))


def _write_shard_sides(item: ShardSides, folder: Path) -> None:
    table = read_shard(item.shard)
    for side in (TRAIN, VALIDATION):
        kept = table.filter(pa.array([chosen == side for chosen in item.sides]))
        if kept.num_rows:
            write_table(folder / side, kept)
