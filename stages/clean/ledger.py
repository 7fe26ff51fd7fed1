"""The ledger: a row for each document with where it comes from and every feature, measured once and kept.

A threshold costs nothing, an edited document its own shard. Once the ledger is judged, it says which documents
are written to which split, a shard for a shard, and how a few that each verdict dropped begin.
"""

import hashlib
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import feather

from stages.clean.filtering import DocumentText, Feature, Measure
from stages.formats.documents import KEPT, Document, containing_file, documents_of, order_of, read_shard, write_table
from stages.formats.tokens import SPLITS
from stages.runtime.atomic import known_sha256
from stages.runtime.cache import cache_key, map_cached
from stages.runtime.errors import UserError, first_line

FEATURES = "features.arrow"
"""In an entry of the cache."""

LATER = ("shard", "verdict", "because", "split", "beginning")
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

EXAMPLES = 5
"""Documents of a verdict that the page about the corpus shows."""

CHARACTERS = 500
"""The columns shown for each document."""

ShardSplits = tuple[Path, list[str]]
"""One shard, and where each of its rows goes: `train`, `validation` or empty."""

SPACE = re.compile(r"\s")
ASCII_SPACE = b"\t\n\v\f\r\x1c\x1d\x1e\x1f "


def measure_shards(shards: Sequence[Path], measures: Mapping[str, Measure]) -> pd.DataFrame:
    """The features of every document by the measures of `Filters.measures`: rows in the order of the shards, a column
    `shard` with the shard's name. Raises UserError that names a column that documents do not have alike."""
    key = cache_key(*measures)
    entries = map_cached(
        "features", shards, lambda shard: cache_key(key, known_sha256(shard)), partial(_measure_shard, measures)
    )
    tables = [feather.read_table(entry / FEATURES) for entry in entries]
    _require_alike(table.column_names for table in tables)
    try:
        ledger: pd.DataFrame = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UserError(f"clean.filters: {first_line(error)}: {MEASURE_REMEDY}") from None
    names = pd.Series([shard.name for shard in shards])
    return ledger.assign(shard=names.repeat(list(map(len, tables))).to_numpy())


MEASURE_REMEDY = "`measure` must return the same columns for each document, with values of one type in each"


def _require_alike(columns: Iterable[Collection[str]]) -> None:
    if len(found := {frozenset(names) for names in columns}) > 1:
        differing = sorted(frozenset.union(*found) - frozenset.intersection(*found))
        raise UserError(f"clean.filters: `{differing[0]}` is missing for some documents: {MEASURE_REMEDY}")


def _measure_shard(measures: Mapping[str, Measure], shard: Path, folder: Path) -> None:
    rows = []
    for document in documents_of(read_shard(shard)):
        text = DocumentText(document.text)
        row = facts_of(document, text)
        for name, measure in measures.items():
            measured = measure(text)
            if taken := [column for column in measured if column in row or column in LATER]:
                raise UserError(
                    f"clean.filters: {name.partition(' ')[0]} measures `{taken[0]}`, which is already a column of "
                    "the ledger; rename it"
                )
            row |= measured
        rows.append(row)
    _require_alike(rows)
    columns = {}
    for name in rows[0] if rows else ():
        try:
            columns[name] = pa.array([row[name] for row in rows])
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise UserError(
                f"clean.filters: `{name}` has values of several types ({first_line(error)}): {MEASURE_REMEDY}"
            ) from None
    # Not Parquet, which takes several times as long for so little; the cache has checksums of its own.
    feather.write_feather(pa.table(columns), folder / FEATURES, compression="uncompressed")


def facts_of(document: Document, text: DocumentText) -> dict[str, Feature]:
    """The facts of one document. Lengths count characters; `language` is guessed by the path's extension, else empty;
    `content_sha256` hashes the text without white space: equal for exact duplicates, as CodeParrot defines them."""
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
    if text.is_ascii or not SPACE.search(text.beyond_ascii):
        return text.data.translate(None, ASCII_SPACE)
    return "".join(text.text.split()).encode("utf-8")


def write_ledger(folder: Path, ledger: pd.DataFrame) -> None:
    """Write the judged ledger, a Parquet file per shard of documents."""
    table = pa.Table.from_pandas(ledger.drop(columns=["shard"]), preserve_index=False).replace_schema_metadata()
    for name, rows in ledger.groupby("shard", sort=True).indices.items():
        write_table(folder / str(name), table.take(pa.array(rows)))


def write_splits(shards: Sequence[Path], ledger: pd.DataFrame, folders: Mapping[str, Path]) -> None:
    """Write each shard's kept documents under its own name. A shard that keeps none for a split has no file there."""
    rows = dict(iter(ledger.groupby("shard")["split"]))
    work = [(shard, list(rows[shard.name])) for shard in shards if shard.name in rows]
    entries = map_cached("splits", work, lambda item: cache_key(known_sha256(item[0]), *item[1]), _write_shard_splits)
    for (shard, _), entry in zip(work, entries, strict=True):
        for split, folder in folders.items():
            if (entry / split).exists():
                shutil.copyfile(entry / split, folder / shard.name)


def _write_shard_splits(item: ShardSplits, folder: Path) -> None:
    shard, splits = item
    documents = read_shard(shard)
    order = order_of(documents)  # masked documents have other ids
    ordered = pa.array(splits).take(order)
    for split in SPLITS:
        kept = order.filter(pc.equal(ordered, split))
        if len(kept):
            write_table(folder / split, documents.take(kept).combine_chunks())


def with_beginnings(ledger: pd.DataFrame, shards: Sequence[Path]) -> pd.DataFrame:
    """The judged ledger with `beginning`: how a few dropped documents of each verdict begin, as they were judged.

    Those with the smallest ids. An id is a hash of the text, so this is a random choice that depends on the documents
    alone, and few shards, which hold ranges of ids, are read.
    """
    dropped = ledger[ledger["verdict"] != KEPT].sort_values("id", kind="stable")
    chosen = dropped.groupby("verdict").head(EXAMPLES)
    row_in_shard = ledger.groupby("shard").cumcount()
    beginnings = dict.fromkeys(ledger.index, "")
    for shard in shards:
        if rows := chosen.index[chosen["shard"] == shard.name].tolist():
            texts = read_shard(shard, ["text"]).column("text")
            beginnings |= {row: texts[int(row_in_shard[row])].as_py()[:CHARACTERS] for row in rows}
    return ledger.assign(beginning=pd.Series(beginnings))
