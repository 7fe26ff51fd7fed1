"""The ledger: a row for each document with where it comes from and every feature, measured once and kept."""

import hashlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pandas as pd
import pyarrow as pa

from stages.clean.filtering import DocumentText, Feature, filter_classes
from stages.clean.vectorized.code_points import space
from stages.formats.documents import documents_of, read_shard, read_table, write_table
from stages.runtime.cache import map_cached, shard_sha256

FEATURES = "features.parquet"

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

ASCII_SPACE = b"\t\n\v\f\r\x1c\x1d\x1e\x1f "


def measure(text: str, path: str) -> dict[str, Feature]:
    """The features of one document: those that reports need, and those of every filter. Lengths count characters.

    `language` is guessed by the path's extension, empty where it is unknown. `content_sha256` is of the text without
    white space: equal for exact duplicates, as CodeParrot defines them.
    """
    read = DocumentText(text)
    features: dict[str, Feature] = {
        "bytes": len(read.data),
        "characters": len(text),
        "lines": len(read.line_lengths),
        "newlines": text.count("\n"),
    }
    for kind in filter_classes():
        features |= kind.measure(read)
    return features | {
        "language": LANGUAGE_OF_SUFFIX.get(PurePosixPath(path).suffix.lower(), ""),
        "content_sha256": hashlib.sha256(_without_space(read)).hexdigest(),
    }


def _without_space(read: DocumentText) -> bytes:
    if read.is_ascii or not space()[read.beyond_ascii].any():
        return read.data.translate(None, ASCII_SPACE)
    return "".join(read.text.split()).encode("utf-8")


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
        {
            "id": document.id,
            "source": document.source,
            "revision": document.revision,
            "path": document.path,
            "license": document.license,
            **measure(document.text, document.path),
        }
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
