"""Documents: Parquet shards named by content, so that editing one document rewrites one shard. And the ledger.

A folder of documents is a binary trie over the documents' ids (sha256 of the text). The leaf `b0110` holds every
document whose id begins with the bits 0110, sorted by id and then by where they come from; a leaf that grows past
`shard_bytes` of text splits on its next bit. The layout depends on the set of documents alone: not on their order, not
on the number of workers.

The ledger has a row for each collected document with its features, `verdict`, `because` and `split`, and for a few of
those that each verdict dropped the `beginning` of the text.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages.formats.opening import without_query
from stages.runtime.errors import UserError

DOCUMENTS = Path("data/documents")
"""The folder of collected documents."""

CLEAN = Path("data/clean")
"""What cleaning kept: `CLEAN / TRAIN` and `CLEAN / VALIDATION`."""

LEDGER = Path("data/clean/ledger")

KEPT = "kept"
"""The verdict on a document that nothing dropped."""

ORDER = ("id", "source", "path", "revision", "license")
"""The columns by which the documents of a shard are sorted."""

PLACE_IN_FILE = re.compile(r"#\d+$")
"""At the end of a path: the number of a row, or of a part of a long text, in its file."""

SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "source", "revision", "path", "license", "text")])

MAX_COLUMN_BYTES = 2**31 - 1
"""The most bytes of text in a column with offsets of 32 bits."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text and where it comes from."""

    id: str
    """sha256 of the UTF-8 text, 64 hex digits."""
    source: str
    """The package, repository or data set; what can be held out together."""
    revision: str
    """The source's version: a release, a commit, or empty."""
    path: str
    """The path in the source, with `/` between the parts."""
    license: str
    """An SPDX expression, or empty if none is known."""
    text: str

    @property
    def size(self) -> int:
        """Bytes of the text in UTF-8."""
        return text_size(self.text)

    @property
    def sort_key(self) -> tuple[str, ...]:
        """The order within a shard."""
        return self.id, self.source, self.path, self.revision, self.license


def text_size(text: str) -> int:
    """Bytes of a text in UTF-8, without making them if it is ASCII."""
    return len(text) if text.isascii() else len(text.encode("utf-8"))


def containing_file(path: str) -> str:
    """The file that a document's path is in, also of a row and of a part; of a web address without its query."""
    return without_query(PLACE_IN_FILE.sub("", path))


def document_id(text: str) -> str:
    """The sha256 of the text's UTF-8 bytes, in hex."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def shard_paths(folder: Path) -> list[Path]:
    """The shards of a folder of documents, in the order of their documents' ids."""
    return sorted(folder.glob("b*.parquet"))


def corpus_id(shards: Iterable[Path]) -> str:
    """One hash for a corpus: over its documents' ids and where they come from, in the order of the shards."""
    digest = hashlib.sha256()
    for shard in shards:
        table = read_table(shard, ["id", "source", "revision", "path"])
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
            digest.update(("\t".join(row) + "\n").encode("utf-8"))
    return digest.hexdigest()


def require_documents(folder: Path) -> list[Path]:
    """The shards of a folder that a stage needs. Raises UserError if it has none."""
    shards = shard_paths(folder)
    if not shards:
        raise UserError(f"{folder}: no documents; run `dvc repro`, which creates them")
    return shards


def read_shard(path: Path, columns: Sequence[str] = tuple(SCHEMA.names)) -> pa.Table:
    """Columns of one shard as a table. Raises UserError that names a damaged shard."""
    table = read_table(path, columns)
    if not table.schema.equals(pa.schema([SCHEMA.field(name) for name in columns])):
        raise UserError(f"{path}: does not have the columns of a documents shard; delete its folder and run again")
    return table


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A Parquet file that `write_table` wrote. Raises UserError that names a damaged one."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return file.read(columns=list(columns) if columns is not None else None)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: damaged ({reason}); delete its folder and run again") from None


def read_ledger(columns: Sequence[str] | None = None) -> pa.Table:
    """Some or all columns of the ledger of the last run. Raises UserError if there is none."""
    shards = shard_paths(LEDGER)
    if not shards:
        raise UserError(f"{LEDGER}: no ledger; run `dvc repro clean`")
    return pa.concat_tables([read_table(shard, columns) for shard in shards])


def read_documents(folder: Path) -> Iterator[Document]:
    """Every document of a folder, a shard in memory at a time."""
    for path in shard_paths(folder):
        yield from documents_of(read_shard(path))


def documents_of(table: pa.Table) -> Iterator[Document]:
    """The rows of a shard's table as documents."""
    for row in table.to_pylist():
        yield Document(**row)


def order_of(table: pa.Table) -> pa.UInt64Array:
    """The numbers of the rows in the order of a shard."""
    import pyarrow.compute as pc  # slow, and most stages do not sort

    return pc.sort_indices(table.select(ORDER), sort_keys=[(name, "ascending") for name in ORDER])


def id_bits(identifier: str, count: int) -> str:
    """The first `count` bits of a hex id, as text."""
    return f"{int(identifier[:16], 16):064b}"[:count]


def write_shard(path: Path, documents: Sequence[Document]) -> None:
    """Write documents, in the order given, as one shard."""
    columns = [_column([getattr(document, name) for document in documents]) for name in SCHEMA.names]
    write_table(path, pa.Table.from_arrays(columns, schema=SCHEMA))


def _column(texts: Sequence[str]) -> pa.Array:
    """As `pa.array(texts)`, which imports pandas first: a quarter of a second in each process that writes a shard."""
    encoded = [text.encode("utf-8") for text in texts]
    ends = np.cumsum([0, *map(len, encoded)])
    if ends[-1] > MAX_COLUMN_BYTES:
        return pa.array(texts, pa.string())
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends.astype("<i4")), pa.py_buffer(b"".join(encoded)))


def write_table(path: Path, table: pa.Table) -> None:
    """Write one table; the same rows give the same bytes, and page checksums detect corruption."""
    pq.write_table(table, path, compression="zstd", write_page_checksum=True)
