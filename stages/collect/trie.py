"""Writes documents as a trie of shards, holding about one shard in memory: they are spooled to temporary buckets by the
first bits of their ids, then each leaf of the trie is read from its buckets, sorted and written."""

import pickle
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from stages.formats.documents import Document, id_bits, write_shard
from stages.runtime.cache import cache_key, cached, find_cached
from stages.runtime.workers import map_shards

CACHE_NAME = "documents"
SHARD = "shard.parquet"

SPOOL_BITS = 8
"""A spool has 2**8 buckets; one that is still too large is spooled again by the next bits."""

SPOOL_SHARDS = 4
"""A bucket of up to this many shards is split in memory."""

SPOOL_BUFFER_BYTES = 256 * 2**20
"""Text that waits in memory before it goes to the buckets. A smaller corpus is never spooled."""

MAXIMUM_BITS = 64
"""A trie is never deeper."""


def write_documents(folder: Path, documents: Iterable[Document], shard_bytes: int) -> None:
    """Write documents as shards of at most about `shard_bytes` bytes of text into an existing folder.

    A leaf with more text splits on the next bit of the ids, unless all its documents are copies of one text. Workers
    write the leaves.
    """
    _write_branch(folder, "", documents, shard_bytes)


@dataclass(slots=True)
class _Bucket:
    """Documents whose ids begin with the same bits: first those in the file, then those that wait in memory."""

    bits: str
    file: Path
    bytes: int = 0
    """Of text."""
    first_id: str = ""
    has_several_ids: bool = False
    is_spooled: bool = False
    waiting: list[Document] = field(default_factory=list)

    def add(self, document: Document) -> None:
        self.waiting.append(document)
        self.bytes += document.size
        self.first_id = self.first_id or document.id
        self.has_several_ids |= document.id != self.first_id

    def spool(self) -> None:
        with self.file.open("ab") as file:
            pickle.dump(self.waiting, file, protocol=pickle.HIGHEST_PROTOCOL)
        self.is_spooled = True
        self.waiting = []

    def documents(self) -> Iterator[Document]:
        if self.is_spooled:
            with self.file.open("rb") as file:
                while file.peek(1):
                    yield from pickle.load(file)
        yield from self.waiting


class _Leaf(NamedTuple):
    """A prefix of the ids, and the buckets below it."""

    bits: str
    buckets: Sequence[_Bucket]

    @property
    def is_spooled(self) -> bool:
        return any(bucket.is_spooled for bucket in self.buckets)

    def is_too_large(self, shard_bytes: int) -> bool:
        """Whether it does not fit into memory, and can be split."""
        bucket = self.buckets[0]
        is_large = bucket.bytes > SPOOL_SHARDS * shard_bytes and bucket.has_several_ids
        return len(self.buckets) == 1 and is_large and len(self.bits) < MAXIMUM_BITS

    def shards(self, shard_bytes: int) -> list[tuple[str, list[Document]]]:
        """Prefixes and documents."""
        documents = chain.from_iterable(bucket.documents() for bucket in self.buckets)
        return list(_shards(self.bits, sorted(documents, key=lambda document: document.sort_key), shard_bytes))


def _write_branch(folder: Path, bits: str, documents: Iterable[Document], shard_bytes: int) -> None:
    with TemporaryDirectory(prefix=".spool-", dir=folder) as spool:
        new = []
        for leaf in _leaves(bits, _spooled(Path(spool), len(bits) + SPOOL_BITS, documents), shard_bytes):
            if leaf.is_too_large(shard_bytes):
                (bucket,) = leaf.buckets
                _write_branch(folder, leaf.bits, bucket.documents(), shard_bytes)
                bucket.file.unlink(missing_ok=True)
            # Most leaves are as the last run wrote them: no worker is started for those.
            elif leaf.is_spooled or not _copy_leaf(folder, shard_bytes, leaf):
                new.append(leaf)
        for leaf, _ in zip(new, map_shards(partial(_write_leaf, folder, shard_bytes), new), strict=True):
            for bucket in leaf.buckets:
                bucket.file.unlink(missing_ok=True)


def _spooled(folder: Path, depth: int, documents: Iterable[Document]) -> list[_Bucket]:
    """Documents by the first `depth` bits of their ids, of which a bounded number of bytes waits in memory."""
    buckets: dict[str, _Bucket] = {}
    waiting = 0
    for document in documents:
        bits = id_bits(document.id, depth)
        buckets.setdefault(bits, _Bucket(bits, folder / bits)).add(document)
        waiting += document.size
        if waiting > SPOOL_BUFFER_BYTES:
            for bucket in buckets.values():
                if bucket.waiting:
                    bucket.spool()
            waiting = 0
    return [buckets[bits] for bits in sorted(buckets)]


def _leaves(bits: str, buckets: Sequence[_Bucket], shard_bytes: int) -> Iterator[_Leaf]:
    """The leaves below a prefix of the ids.

    For example, with buckets of two bits and at most 100 bytes a shard:

        bucket      00   01   10   11
        bytes       40   30   90   900

    The root (160 + 900 bytes) splits. Prefix 0 has 70 bytes and becomes the leaf `b0`. Prefix 1 splits into 10, the
    leaf `b10`, and 11, which is still too large. If it fits into memory (4 shards), `_write_leaf` splits it there;
    otherwise, as here, it is spooled again by its next bits.
    """
    has_several_ids = len(buckets) > 1 or any(bucket.has_several_ids for bucket in buckets)
    is_large = sum(bucket.bytes for bucket in buckets) > shard_bytes
    if is_large and has_several_ids and len(bits) < len(buckets[0].bits):
        for prefix in (f"{bits}0", f"{bits}1"):
            yield from _leaves(prefix, [bucket for bucket in buckets if bucket.bits.startswith(prefix)], shard_bytes)
    elif buckets:
        yield _Leaf(bits, buckets)


def _copy_leaf(folder: Path, shard_bytes: int, leaf: _Leaf) -> bool:
    """Copy the shards of a leaf from the cache, if the last runs wrote all of them."""
    entries = {}
    for bits, documents in leaf.shards(shard_bytes):
        if (entry := find_cached(CACHE_NAME, _shard_key(documents), _write_shard)) is None:
            return False
        entries[bits] = entry
    for bits, entry in entries.items():
        shutil.copyfile(entry / SHARD, folder / f"b{bits}.parquet")
    return True


def _write_leaf(folder: Path, shard_bytes: int, leaf: _Leaf) -> None:
    """Write the shards of a leaf, or copy them from the cache: compressing costs more than all the rest."""
    for bits, documents in leaf.shards(shard_bytes):
        entry = cached(CACHE_NAME, _shard_key(documents), partial(_write_shard, documents))
        shutil.copyfile(entry / SHARD, folder / f"b{bits}.parquet")


def _shards(bits: str, documents: list[Document], shard_bytes: int) -> Iterator[tuple[str, list[Document]]]:
    size = sum(document.size for document in documents)
    if size > shard_bytes and documents[0].id != documents[-1].id and len(bits) < MAXIMUM_BITS:
        for prefix in (f"{bits}0", f"{bits}1"):
            yield from _shards(prefix, [d for d in documents if id_bits(d.id, len(prefix)) == prefix], shard_bytes)
    elif documents:
        yield bits, documents


def _shard_key(documents: list[Document]) -> str:
    return cache_key(*(fact for d in documents for fact in (d.id, d.source, d.revision, d.path, d.license)))


def _write_shard(documents: list[Document], folder: Path) -> None:
    write_shard(folder / SHARD, documents)
