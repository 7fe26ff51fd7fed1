"""Writes documents as a trie of shards, holding about one shard in memory.

Documents are put into buckets by the first bits of their ids, which a spool takes once memory is full; then each shard
is read from its buckets, sorted and written.
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

from stages.formats.documents import LARGEST_COLUMN_BYTES, Document, id_bits, write_shard
from stages.runtime.cache import cache_key, cached, in_use
from stages.runtime.errors import UserError
from stages.runtime.workers import map_shards

CACHE_NAME = "documents"
SHARD = "shard.parquet"

BUCKET_BITS = 12
"""A shard has at least one bucket, so there are at most 4,096 shards."""

BUFFER_BYTES = 256 * 2**20
"""Text that waits in memory before it goes to the buckets. A smaller corpus is never spooled."""


@dataclass(slots=True)
class _Bucket:
    """Documents whose ids begin with the same bits: first those in the spool, then those that wait in memory."""

    bits: str
    bytes: int = 0
    spooled: list[int] = field(default_factory=list)
    """The offset of its documents in the spool."""
    waiting: list[Document] = field(default_factory=list)

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

    A shard with more text splits on the next bit of the ids. Raises UserError if more text than a shard can hold is
    left in one bucket.
    """
    in_use()
    with TemporaryDirectory(prefix=".spool-", dir=folder) as temporary:
        spool = Path(temporary, "documents")
        with spool.open("wb") as file:
            buckets = _buckets(file, documents)
        for _ in map_shards(partial(_write, folder, spool), list(_shards("", buckets, shard_bytes))):
            pass


def _buckets(spool: BinaryIO, documents: Iterable[Document]) -> list[_Bucket]:
    buckets: dict[str, _Bucket] = {}
    waiting = 0
    for document in documents:
        bits = id_bits(document.id, BUCKET_BITS)
        bucket = buckets.setdefault(bits, _Bucket(bits))
        bucket.waiting.append(document)
        bucket.bytes += document.size
        waiting += document.size
        if waiting > BUFFER_BYTES:
            for one in buckets.values():
                one.empty(spool)
            waiting = 0
    return [buckets[bits] for bits in sorted(buckets)]


def _shards(bits: str, buckets: Sequence[_Bucket], shard_bytes: int) -> Iterator[tuple[str, Sequence[_Bucket]]]:
    """The shards below a prefix of the ids: each a prefix with its buckets."""
    size = sum(bucket.bytes for bucket in buckets)
    if size > shard_bytes and len(buckets) > 1:
        for prefix in (f"{bits}0", f"{bits}1"):
            yield from _shards(prefix, [bucket for bucket in buckets if bucket.bits.startswith(prefix)], shard_bytes)
    elif size > LARGEST_COLUMN_BYTES:
        raise UserError(f"collect: {size:,} bytes of text are too much for one shard: raise collect.shard_bytes")
    elif buckets:
        yield bits, buckets


def _write(folder: Path, spool: Path, shard: tuple[str, Sequence[_Bucket]]) -> None:
    """Write a shard, or copy it from the cache: compressing costs more than all the rest."""
    bits, buckets = shard
    with spool.open("rb") as file:
        documents = sorted(
            chain.from_iterable(bucket.documents(file) for bucket in buckets), key=lambda document: document.sort_key
        )
    key = cache_key(*(fact for d in documents for fact in (d.id, d.source, d.revision, d.path, d.license)))
    entry = cached(CACHE_NAME, key, partial(_write_shard, documents))
    shutil.copyfile(entry / SHARD, folder / f"b{bits}.parquet")


def _write_shard(documents: list[Document], folder: Path) -> None:
    write_shard(folder / SHARD, documents)
