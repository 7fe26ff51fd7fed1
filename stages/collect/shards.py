"""Writes documents as a trie of shards, holding about one shard in memory.

Documents are spooled to buckets by the first bits of their ids, then each shard is read from its buckets, sorted and
written.
"""

import pickle
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

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


class _Bucket:
    """Documents whose ids begin with the same bits: first those in the file, then those that wait in memory."""

    def __init__(self, bits: str, file: Path) -> None:
        self.bits = bits
        self.file = file
        self.bytes = 0
        self.waiting: list[Document] = []

    def spool(self) -> None:
        """Empty the memory."""
        with self.file.open("ab") as file:
            pickle.dump(self.waiting, file, protocol=pickle.HIGHEST_PROTOCOL)
        self.waiting = []

    def documents(self) -> Iterator[Document]:
        """All of them, in no order."""
        if self.file.exists():
            with self.file.open("rb") as file:
                while file.peek(1):
                    yield from pickle.load(file)
        yield from self.waiting


def write_documents(folder: Path, documents: Iterable[Document], shard_bytes: int) -> None:
    """Write documents as shards of at most about `shard_bytes` bytes of text into an existing folder.

    A shard with more text splits on the next bit of the ids. Raises UserError if more text than a shard can hold is
    left in one bucket.
    """
    in_use()
    with TemporaryDirectory(prefix=".spool-", dir=folder) as spool:
        shards = list(_shards("", _buckets(Path(spool), documents), shard_bytes))
        for _ in map_shards(partial(_write, folder), shards):
            pass


def _buckets(folder: Path, documents: Iterable[Document]) -> list[_Bucket]:
    buckets: dict[str, _Bucket] = {}
    waiting = 0
    for document in documents:
        bits = id_bits(document.id, BUCKET_BITS)
        bucket = buckets.setdefault(bits, _Bucket(bits, folder / bits))
        bucket.waiting.append(document)
        bucket.bytes += document.size
        waiting += document.size
        if waiting > BUFFER_BYTES:
            for one in buckets.values():
                one.spool()
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


def _write(folder: Path, shard: tuple[str, Sequence[_Bucket]]) -> None:
    """Write a shard, or copy it from the cache: compressing costs more than all the rest."""
    bits, buckets = shard
    documents = sorted(
        chain.from_iterable(bucket.documents() for bucket in buckets), key=lambda document: document.sort_key
    )
    key = cache_key(*(fact for d in documents for fact in (d.id, d.source, d.revision, d.path, d.license)))
    entry = cached(CACHE_NAME, key, partial(_write_shard, documents))
    shutil.copyfile(entry / SHARD, folder / f"b{bits}.parquet")


def _write_shard(documents: list[Document], folder: Path) -> None:
    write_shard(folder / SHARD, documents)
