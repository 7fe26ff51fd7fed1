"""Writes documents as a trie of shards, holding about one shard in memory.

Documents are put into buckets by the first bits of their ids, which a spool takes once memory is full; then each shard
is read from its buckets, sorted and written. A bucket with more text than a shard is put into buckets by its next bits,
and so on.
"""

import pickle
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from stages.formats.documents import MAX_COLUMN_BYTES, Document, id_bits, write_shard
from stages.runtime.cache import cache_key, cached, in_use
from stages.runtime.errors import UserError
from stages.runtime.workers import map_shards

CACHE_NAME = "documents"
SHARD = "shard.parquet"

BUCKET_BITS = 12
"""Of an id, for the buckets of one level: 4,096."""

MAX_BITS = 60
"""Deeper levels would tell no ids apart."""

BUFFER_BYTES = 256 * 2**20
"""Text that waits in memory before it goes to the buckets. A smaller corpus is never spooled."""


@dataclass(slots=True)
class _Bucket:
    """Documents whose ids begin with the same bits: first those in the spool, then those that wait in memory."""

    bits: str
    id: str
    """Of its first document."""
    bytes: int = 0
    has_others: bool = False
    """True if a document has another id."""
    spooled: list[int] = field(default_factory=list)
    """The offset of its documents in the spool."""
    waiting: list[Document] = field(default_factory=list)

    def add(self, document: Document) -> None:
        """Put a document into it."""
        self.waiting.append(document)
        self.bytes += document.size
        self.has_others |= document.id != self.id

    def empty(self, spool: BinaryIO) -> None:
        """Move what waits into the spool."""
        self.spooled.append(spool.tell())
        pickle.dump(self.waiting, spool, protocol=pickle.HIGHEST_PROTOCOL)
        self.waiting = []

    def documents(self, spool: BinaryIO) -> Iterator[Document]:
        """All of them, in no order."""
        for place in self.spooled:
            spool.seek(place)
            yield from pickle.load(spool)
        yield from self.waiting


def write_documents(folder: Path, documents: Iterable[Document], shard_bytes: int) -> None:
    """Write documents as shards of at most about `shard_bytes` bytes of text into an existing folder.

    A shard with more text splits on the next bit of the ids, unless all of it is copies of one text. Raises UserError
    if these are more than a shard can hold.
    """
    in_use()
    limit = min(shard_bytes, MAX_COLUMN_BYTES)
    with TemporaryDirectory(prefix=".spool-", dir=folder) as temporary:
        spool = Path(temporary, "documents")
        with spool.open("wb") as file:
            buckets = _buckets(file, documents, BUCKET_BITS)
        for _ in map_shards(partial(_write, folder, spool, limit), list(_shards("", buckets, limit))):
            pass


def _buckets(spool: BinaryIO, documents: Iterable[Document], depth: int) -> list[_Bucket]:
    """Documents by the first `depth` bits of their ids."""
    buckets: dict[str, _Bucket] = {}
    waiting = 0
    for document in documents:
        bits = id_bits(document.id, depth)
        buckets.setdefault(bits, _Bucket(bits, document.id)).add(document)
        waiting += document.size
        if waiting > BUFFER_BYTES:
            for one in buckets.values():
                one.empty(spool)
            waiting = 0
    return [buckets[bits] for bits in sorted(buckets)]


def _shards(bits: str, buckets: Sequence[_Bucket], limit: int) -> Iterator[tuple[str, Sequence[_Bucket]]]:
    """The shards below a prefix of the ids: each a prefix with its buckets, of which one may have more than `limit`."""
    if len(buckets) > 1 and sum(bucket.bytes for bucket in buckets) > limit:
        for prefix in (f"{bits}0", f"{bits}1"):
            yield from _shards(prefix, [bucket for bucket in buckets if bucket.bits.startswith(prefix)], limit)
    elif buckets:
        yield bits, buckets


def _write(folder: Path, spool: Path, limit: int, shard: tuple[str, Sequence[_Bucket]]) -> None:
    """Write a shard, or copy it from the cache: compressing costs more than all the rest."""
    bits, buckets = shard
    with spool.open("rb") as file:
        documents = chain.from_iterable(bucket.documents(file) for bucket in buckets)
        size, first = sum(bucket.bytes for bucket in buckets), buckets[0]
        if size > limit and first.has_others and len(first.bits) < MAX_BITS:
            _write_deeper(folder, spool, limit, (bits, first), documents)
            return
        if size > MAX_COLUMN_BYTES:
            copies = next(documents)
            raise UserError(
                f"collect: {copies.path}: the copies of this text have {size:,} bytes, more than a shard can hold; "
                "remove some from collect.sources"
            )
        ordered = sorted(documents, key=lambda document: document.sort_key)
    key = cache_key(*(fact for d in ordered for fact in (d.id, d.source, d.revision, d.path, d.license)))
    entry = cached(CACHE_NAME, key, lambda folder: write_shard(folder / SHARD, ordered))
    shutil.copyfile(entry / SHARD, folder / f"b{bits}.parquet")


def _write_deeper(
    folder: Path, spool: Path, limit: int, shard: tuple[str, _Bucket], documents: Iterable[Document]
) -> None:
    """Write the shards of a bucket with more text than one shard, by the next bits of the ids."""
    bits, bucket = shard
    depth = min(len(bucket.bits) + BUCKET_BITS, MAX_BITS)
    deeper = spool.with_name(f"documents-{bucket.bits}")
    with deeper.open("wb") as file:
        buckets = _buckets(file, documents, depth)
    for finer in _shards(bits, buckets, limit):
        _write(folder, deeper, limit, finer)
    deeper.unlink()
