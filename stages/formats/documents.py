"""Documents: Parquet shards named by content, so that editing one document rewrites one shard.

A folder of documents is a binary trie over the documents' ids (sha256 of the text). The leaf `b0110` holds every
document whose id begins with the bits 0110, sorted by (id, source, path); a leaf that grows past `shard_bytes` of text
splits on its next bit. The layout depends on the set of documents alone: not on their order, not on the number of
workers.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stages.formats.entry import UserError

SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "source", "revision", "path", "license", "text")])


@dataclass(frozen=True, slots=True)
class Document:
    """One text and where it comes from."""

    id: str
    """sha256 of the UTF-8 text, 64 hex digits."""
    source: str
    """The package, repository or data set; documents of one source stay on one side of a split."""
    revision: str
    """The source's version: a release, a commit, or empty."""
    path: str
    """Where in the source, with `/` between the parts."""
    license: str
    """An SPDX expression, or empty where none is known."""
    text: str

    @property
    def sort_key(self) -> tuple[str, str, str]:
        """The order within a shard."""
        return (self.id, self.source, self.path)


def document_id(text: str) -> str:
    """The sha256 of the text's UTF-8 bytes, in hex."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def shard_paths(folder: Path) -> list[Path]:
    """The shards of a folder of documents, in the order of their documents' ids."""
    return sorted(folder.glob("b*.parquet"))


def read_shard(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """One shard as a table. Raises UserError that names a damaged shard."""
    try:
        return pq.read_table(path, columns=columns, partitioning=None)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: damaged documents shard ({error}); delete its folder and run again") from None


def read_documents(folder: Path) -> Iterator[Document]:
    """Every document of a folder, a shard in memory at a time."""
    for path in shard_paths(folder):
        yield from documents_of(read_shard(path))


def documents_of(table: pa.Table) -> Iterator[Document]:
    """The rows of a shard's table as documents."""
    for row in table.to_pylist():
        yield Document(**row)


def write_documents(folder: Path, documents: Iterable[Document], shard_bytes: int) -> None:
    """Write documents as a trie of shards of at most about `shard_bytes` bytes of text into an existing folder."""
    _write_leaf(folder, "", sorted(documents, key=lambda document: document.sort_key), shard_bytes)


def _write_leaf(folder: Path, bits: str, documents: list[Document], shard_bytes: int) -> None:
    size = sum(len(document.text.encode("utf-8")) for document in documents)
    if size > shard_bytes and documents[0].id != documents[-1].id:
        for bit in "01":
            prefix = bits + bit
            _write_leaf(folder, prefix, [d for d in documents if id_bits(d.id, len(prefix)) == prefix], shard_bytes)
    elif documents or not bits:
        write_shard(folder / f"b{bits}.parquet", documents)


def id_bits(identifier: str, count: int) -> str:
    """The first `count` bits of a hex id, as text."""
    return f"{int(identifier[:16], 16):064b}"[:count]


def write_shard(path: Path, documents: Sequence[Document]) -> None:
    """Write one shard; the same documents give the same bytes."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for document in documents:
        for name, value in asdict(document).items():
            columns[name].append(value)
    pq.write_table(pa.table(columns, schema=SCHEMA), path, compression="zstd")
