"""The ledger: a row for each document with where it comes from and every feature, measured once and kept.

The features of one filter are kept apart from those of the others, by the code that measures them. So a filter that is
new or edited costs its own columns, and a threshold costs nothing. Once the ledger is judged, it says which documents
are written to which split, a shard for a shard.
"""

import hashlib
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import feather

from stages.clean.code_points import SPACE
from stages.clean.filtering import DocumentText, Feature, Measure
from stages.formats.documents import Document, containing_file, documents_of, order_of, read_shard, write_table
from stages.formats.splits import SPLITS
from stages.runtime.cache import cache_key, map_cached, map_cached_parts, shard_sha256
from stages.runtime.entry import UserError, first_line

FEATURES = "features.arrow"
"""In an entry of the cache. Its key has the name too, since of code the filter's alone counts there."""

FACTS = "facts"
LAST_COLUMNS = ("language", "content_sha256")
"""Of the facts; the others are the ledger's first."""
NOT_MEASURED = ("shard", "verdict", "split")
"""Columns that the ledger gets afterwards."""

LANGUAGE_OF_SUFFIX = {
    extension: language
    for language, extensions in {
        "C": ".c .h", "C++": ".cc .cpp .cxx .hpp", "CSS": ".css", "Go": ".go", "HTML": ".html .htm", "JSON": ".json",
        "Java": ".java", "JavaScript": ".js .mjs", "Markdown": ".md", "Python": ".py .pyi", "Rust": ".rs",
        "SQL": ".sql", "Shell": ".sh .bash", "TOML": ".toml", "TypeScript": ".ts .tsx", "YAML": ".yaml .yml",
        "reStructuredText": ".rst", "text": ".txt",
    }.items()
    for extension in extensions.split()
}  # fmt: skip

ShardSplits = tuple[Path, list[str]]
"""One shard, and where each of its rows goes: `train`, `validation` or empty."""

ASCII_SPACE = b"\t\n\v\f\r\x1c\x1d\x1e\x1f "


def measure_shards(shards: Sequence[Path], measures: Mapping[str, Measure]) -> pd.DataFrame:
    """The features of every document by the measures of `Filters.measures`: rows in the order of the shards, a column
    `shard` with the shard's name. One edited document costs one shard, a new filter its columns."""
    parts: dict[str, Callable[..., object]] = {FACTS: facts_of, **measures}
    entries = map_cached_parts("features", shards, _key_of, parts, partial(_measure_shard, measures))
    tables = {name: [feather.read_table(entry[name] / FEATURES) for entry in entries] for name in parts}
    ledger: pd.DataFrame = _columns({name: _joined(name, found) for name, found in tables.items()}).to_pandas()
    names = pd.Series([shard.name for shard in shards])
    return ledger.assign(shard=names.repeat(list(map(len, tables[FACTS]))).to_numpy())


def _key_of(shard: Path) -> str:
    return cache_key(FEATURES, shard_sha256(shard))


def _joined(name: str, tables: Sequence[pa.Table]) -> pa.Table:
    with one_kind_of_row(name, (table.column_names for table in tables)):
        return pa.concat_tables(tables, promote_options="permissive")


@contextmanager
def one_kind_of_row(name: str, columns: Iterable[Collection[str]]) -> Iterator[None]:
    """Raise UserError that names a filter where its columns, or the types of their values, are not everywhere alike."""
    what = f"clean.filters: {name.partition(' ')[0]}"
    remedy = "let `measure` give each document the same columns, and a column values of one type"
    if len(found := {frozenset(names) for names in columns}) > 1:
        differing = sorted(frozenset.union(*found) - frozenset.intersection(*found))
        raise UserError(f"{what} measures `{differing[0]}` of some documents only: {remedy}")
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise UserError(f"{what}: values of several types in a column ({first_line(error)}): {remedy}") from None


def _columns(tables: dict[str, pa.Table]) -> pa.Table:
    facts = tables.pop(FACTS)
    columns: dict[str, pa.ChunkedArray] = dict(zip(facts.column_names, facts.columns, strict=True))
    for name, table in tables.items():
        for column in table.column_names:
            if column in columns or column in NOT_MEASURED:
                filter_name = name.partition(" ")[0]
                raise UserError(
                    f"clean.filters: {filter_name} measures `{column}`, a column that the ledger has already"
                )
            columns[column] = table.column(column)
    last = {name: columns.pop(name) for name in LAST_COLUMNS}
    return pa.table(columns | last)


def _measure_shard(
    measures: Mapping[str, Measure], shard: Path, parts: Sequence[str]
) -> dict[str, Callable[[Path], None]]:
    """Measure some parts of a shard in one pass over it; how to write each."""
    found = {name: measure for name, measure in measures.items() if name in parts}
    rows: dict[str, list[dict[str, Feature]]] = {name: [] for name in parts}
    for document in documents_of(read_shard(shard)):
        text = DocumentText(document.text)
        if FACTS in rows:
            rows[FACTS].append(facts_of(document, text))
        for name, measure in found.items():
            rows[name].append(measure(text))
    return {name: partial(_write, name, part) for name, part in rows.items()}


def facts_of(document: Document, text: DocumentText) -> dict[str, Feature]:
    """The facts of one document. Lengths count characters; `language` is guessed by the path's extension, else empty;
    `content_sha256` is of the text without white space: equal for exact duplicates, as CodeParrot defines them."""
    return {
        "id": document.id,
        "source": document.source,
        "revision": document.revision,
        "path": document.path,
        "license": document.license,
        "bytes": len(text.data),
        "characters": len(text.text),
        "lines": len(text.line_lengths),
        "newlines": text.text.count("\n"),
        "language": LANGUAGE_OF_SUFFIX.get(PurePosixPath(containing_file(document.path)).suffix.lower(), ""),
        "content_sha256": hashlib.sha256(_without_space(text)).hexdigest(),
    }


def _without_space(text: DocumentText) -> bytes:
    if text.is_ascii or not SPACE[text.beyond_ascii].any():
        return text.data.translate(None, ASCII_SPACE)
    return "".join(text.text.split()).encode("utf-8")


def _write(name: str, rows: list[dict[str, Feature]], folder: Path) -> None:
    with one_kind_of_row(name, rows):
        table = pa.Table.from_pylist(rows)
    # Not Parquet, which takes several times as long for so little; the cache has checksums of its own.
    feather.write_feather(table, folder / FEATURES, compression="uncompressed")


def write_ledger(folder: Path, ledger: pd.DataFrame) -> None:
    """Write the judged ledger, a Parquet file per shard of documents."""
    table = pa.Table.from_pandas(ledger.drop(columns=["shard"]), preserve_index=False).replace_schema_metadata()
    for name, rows in ledger.groupby("shard", sort=True).indices.items():
        write_table(folder / str(name), table.take(pa.array(rows)))


def write_splits(shards: Sequence[Path], ledger: pd.DataFrame, folders: Mapping[str, Path]) -> None:
    """Write each shard's kept documents under its own name. A shard that keeps none for a split has no file there."""
    rows = dict(iter(ledger.groupby("shard")["split"]))
    work = [(shard, list(rows[shard.name])) for shard in shards if shard.name in rows]
    entries = map_cached("splits", work, _splits_key, _write_shard_splits)
    for (shard, _), entry in zip(work, entries, strict=True):
        for split, folder in folders.items():
            if (entry / split).exists():
                shutil.copyfile(entry / split, folder / shard.name)


def _splits_key(item: ShardSplits) -> str:
    shard, splits = item
    return cache_key(shard_sha256(shard), *splits)


def _write_shard_splits(item: ShardSplits, folder: Path) -> None:
    shard, splits = item
    documents = read_shard(shard)
    order = order_of(documents)  # masked documents have other ids
    ordered = pa.array(splits).take(order)
    for split in SPLITS:
        kept = order.filter(pc.equal(ordered, split))
        if len(kept):
            write_table(folder / split, documents.take(kept).combine_chunks())
