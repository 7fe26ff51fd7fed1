"""Documents: Parquet shards named by content, so that editing one document rewrites one shard.

A folder of documents is a binary trie over the documents' ids (sha256 of the text). The leaf `b0110` holds every
document whose id begins with the bits 0110, sorted by (id, source, path); a leaf that grows past `shard_bytes` of text
splits on its next bit. The layout depends on the set of documents alone: not on their order, not on the number of
workers.
"""

import hashlib
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stages.formats.entry import UserError

SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "source", "revision", "path", "license", "text")])

SPOOL_BITS = 8
"""A spool has 2**8 buckets; one that is still too large is spooled again by the next bits."""

SPOOL_SHARDS = 4
"""A bucket of up to this many shards is split in memory."""

SPOOL_BUFFER_BYTES = 64 * 2**20
"""Text that waits in memory before it goes to the buckets."""

MAXIMUM_BITS = 64
"""A trie is never deeper: documents that agree in so many bits are copies of one text."""


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
    def size(self) -> int:
        """Bytes of the text in UTF-8."""
        return len(self.text.encode("utf-8"))

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


def require_documents(folder: Path) -> list[Path]:
    """The shards of a folder that a stage cannot do without. Raises UserError if it has none."""
    shards = shard_paths(folder)
    if not shards:
        raise UserError(f"{folder}: no documents; run `dvc repro`, which makes them first")
    return shards


def read_shard(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """One shard as a table. Raises UserError that names a damaged shard."""
    try:
        return pq.read_table(path, columns=columns, partitioning=None, page_checksum_verification=True)
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
    """Write documents as a trie of shards of at most about `shard_bytes` bytes of text into an existing folder.

    Holds about one shard in memory: documents are first spooled to temporary buckets by the first bits of their ids.
    """
    _write_branch(folder, "", documents, shard_bytes)


def _write_branch(folder: Path, bits: str, documents: Iterable[Document], shard_bytes: int) -> None:
    with TemporaryDirectory(prefix=".spool-", dir=folder) as spool:
        buckets = _Buckets(Path(spool), len(bits) + SPOOL_BITS)
        for document in documents:
            buckets.add(document)
        buckets.flush()
        _write_leaves(folder, bits, buckets, shard_bytes)


def _write_leaves(folder: Path, bits: str, buckets: "_Buckets", shard_bytes: int) -> None:
    size = buckets.size(bits)
    if size > shard_bytes and len(bits) < buckets.depth:
        for bit in "01":
            _write_leaves(folder, bits + bit, buckets, shard_bytes)
    elif size > SPOOL_SHARDS * shard_bytes and len(bits) < MAXIMUM_BITS:
        _write_branch(folder, bits, buckets.read(bits), shard_bytes)
    elif size or not bits:
        _write_leaf(folder, bits, sorted(buckets.read(bits), key=lambda document: document.sort_key), shard_bytes)


def _write_leaf(folder: Path, bits: str, documents: list[Document], shard_bytes: int) -> None:
    size = sum(document.size for document in documents)
    if size > shard_bytes and documents[0].id != documents[-1].id and len(bits) < MAXIMUM_BITS:
        for bit in "01":
            prefix = bits + bit
            _write_leaf(folder, prefix, [d for d in documents if id_bits(d.id, len(prefix)) == prefix], shard_bytes)
    elif documents or not bits:
        write_shard(folder / f"b{bits}.parquet", documents)


class _Buckets:
    """Documents in temporary files by the first `depth` bits of their ids, a bounded number of bytes in memory."""

    def __init__(self, folder: Path, depth: int) -> None:
        self.folder = folder
        self.depth = depth
        self._sizes: dict[str, int] = {}
        self._waiting: dict[str, list[Document]] = {}
        self._waiting_bytes = 0

    def add(self, document: Document) -> None:
        bits = id_bits(document.id, self.depth)
        self._waiting.setdefault(bits, []).append(document)
        self._sizes[bits] = self._sizes.get(bits, 0) + document.size
        self._waiting_bytes += document.size
        if self._waiting_bytes > SPOOL_BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        for bits, documents in self._waiting.items():
            with (self.folder / bits).open("ab") as file:
                pickle.dump(documents, file, protocol=pickle.HIGHEST_PROTOCOL)
        self._waiting = {}
        self._waiting_bytes = 0

    def size(self, bits: str) -> int:
        """Bytes of text under a prefix."""
        return sum(size for bucket, size in self._sizes.items() if bucket.startswith(bits))

    def read(self, bits: str) -> Iterator[Document]:
        for bucket in sorted(bucket for bucket in self._sizes if bucket.startswith(bits)):
            with (self.folder / bucket).open("rb") as file:
                while file.peek(1):
                    yield from pickle.load(file)


def id_bits(identifier: str, count: int) -> str:
    """The first `count` bits of a hex id, as text."""
    return f"{int(identifier[:16], 16):064b}"[:count]


def write_shard(path: Path, documents: Sequence[Document]) -> None:
    """Write documents, in the order given, as one shard."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for document in documents:
        for name, value in asdict(document).items():
            columns[name].append(value)
    write_table(path, pa.table(columns, schema=SCHEMA))


def write_table(path: Path, table: pa.Table) -> None:
    """Write one table; the same rows give the same bytes, and a checksum on each page tells a flipped byte."""
    pq.write_table(table, path, compression="zstd", write_page_checksum=True)
