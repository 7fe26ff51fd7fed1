"""The ledger: a row for each document with where it comes from and every feature, measured once and kept.

The features of one filter are kept apart from those of the others, by the code that measures them. So a filter that is
new or edited costs its own columns, and a threshold costs nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyarrow import feather

from stages.clean.facts import facts_of
from stages.clean.filtering import DocumentText, Feature, Measure
from stages.clean.params import Filters, filter_classes
from stages.formats.documents import documents_of, read_shard, write_table
from stages.runtime.cache import cache_key, map_cached_parts, shard_sha256
from stages.runtime.entry import InputsChangedError, UserError

FEATURES = "features.arrow"
"""In an entry of the cache. Its key has the name too, since of code the filter's alone counts there."""

FACTS = "facts"
LAST_COLUMNS = ("language", "content_sha256")
"""Of the facts; the others are the ledger's first."""


def measures(filters: Filters) -> dict[str, Measure]:
    """Filter, with what it depends on, -> how it measures one document; without those that measure nothing."""
    found = {}
    for kind in filter_classes():
        if (measure := kind.measurement(filters)) is not None:
            given = measure.args if isinstance(measure, partial) else ()
            found[" ".join((f"{kind.__module__}.{kind.__qualname__}", *map(str, given)))] = measure
    return found


def measure_shards(shards: Sequence[Path], filters: Filters) -> pd.DataFrame:
    """The features of every document: rows in the order of the shards, a column `shard` with the shard's name.

    What was measured before is taken from the cache: one edited document costs one shard, a new filter its columns.
    """
    parts: dict[str, Callable[..., object]] = {FACTS: facts_of, **measures(filters)}
    entries = map_cached_parts("features", shards, _key_of, parts, partial(_measure_shard, filters))
    tables = list(map(_columns, entries))
    ledger: pd.DataFrame = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    names = pd.Series([shard.name for shard in shards])
    return ledger.assign(shard=names.repeat(list(map(len, tables))).to_numpy())


def _key_of(shard: Path) -> str:
    return cache_key(FEATURES, shard_sha256(shard))


def _columns(entries: Mapping[str, Path]) -> pa.Table:
    tables = {name: feather.read_table(entry / FEATURES) for name, entry in entries.items()}
    facts = tables.pop(FACTS)
    columns: dict[str, pa.ChunkedArray] = dict(zip(facts.column_names, facts.columns, strict=True))
    for name, table in tables.items():
        for column in table.column_names:
            if column in columns:
                raise UserError(f"clean.filters: {name} measures `{column}`, a column that the ledger has already")
            columns[column] = table.column(column)
    last = {name: columns.pop(name) for name in LAST_COLUMNS}
    return pa.table(columns | last)


def _measure_shard(filters: Filters, shard: Path, parts: Sequence[str]) -> dict[str, Callable[[Path], None]]:
    """Measure some parts of a shard in one pass over it; how to write each."""
    found = {name: measure for name, measure in measures(filters).items() if name in parts}
    if changed := set(parts) - found.keys() - {FACTS}:
        raise InputsChangedError(f"clean: {', '.join(sorted(changed))}: changed meanwhile: run the same command again")
    rows: dict[str, list[dict[str, Feature]]] = {name: [] for name in parts}
    for document in documents_of(read_shard(shard)):
        text = DocumentText(document.text)
        if FACTS in rows:
            rows[FACTS].append(facts_of(document, text))
        for name, measure in found.items():
            rows[name].append(measure(text))
    return {name: partial(_write, part) for name, part in rows.items()}


def _write(rows: list[dict[str, Feature]], folder: Path) -> None:
    # Not Parquet, which takes several times as long for so little; the cache has checksums of its own.
    feather.write_feather(pa.Table.from_pylist(rows), folder / FEATURES, compression="uncompressed")


def write_ledger(folder: Path, ledger: pd.DataFrame) -> None:
    """Write the judged ledger, a Parquet file per shard of documents."""
    table = pa.Table.from_pandas(ledger.drop(columns=["shard"]), preserve_index=False).replace_schema_metadata()
    for name, rows in ledger.groupby("shard", sort=True).indices.items():
        write_table(folder / str(name), table.take(pa.array(rows)))
