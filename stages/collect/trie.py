"""Writes documents as a trie of shards, holding about one shard in memory.

Documents are spooled to temporary buckets by the first bits of their ids, then each leaf of the trie is read from its
buckets, sorted and written.
"""

import pickle
import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from stages.collect.content_check import UnreadDocument
from stages.formats.documents import Document, id_bits, write_shard
from stages.formats.parts import WHOLE
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


UNREAD_BYTES = 500
"""About what an unread document takes in memory."""


def write_documents(folder: Path, documents: Iterable[Document], shard_bytes: int, part: str = WHOLE) -> None:
    """Write documents as shards of at most about `shard_bytes` bytes of text into an existing folder.

    A leaf with more text splits on the next bit of the ids, unless all its documents are copies of one text. Workers
    write the leaves. Of a part only the documents whose ids begin with its bits are written: the branch there.
    """
    own = (document for document in documents if id_bits(document.id, len(part)) == part)
    _write_branch(folder, part, own, shard_bytes)


class _Leaf(NamedTuple):
    """A prefix of the ids whose documents fit into memory."""

    bits: str
    spooled: list[Path]
    waiting: list[Document]

    def documents(self) -> list[Document]:
        """All of them, in their order."""
        found = [*chain.from_iterable(map(_spooled, self.spooled)), *self.waiting]
        return sorted(found, key=lambda document: document.sort_key)


def _write_branch(folder: Path, bits: str, documents: Iterable[Document], shard_bytes: int) -> None:
    with TemporaryDirectory(prefix=".spool-", dir=folder) as spool:
        buckets = _Buckets(Path(spool), len(bits) + SPOOL_BITS)
        for document in documents:
            buckets.add(document)
        leaves: list[_Leaf] = []
        for leaf in _leaves(bits, buckets, shard_bytes):
            if isinstance(leaf, _Leaf):
                leaves.append(leaf)
            else:
                _write_branch(folder, leaf, buckets.read(leaf), shard_bytes)
        # Most leaves are as the last run wrote them: no worker is started for those.
        new = [leaf for leaf in leaves if leaf.spooled or not _copy_leaf(folder, shard_bytes, leaf)]
        written = map_shards(partial(_write_leaf, folder, shard_bytes), new)
        for leaf, _ in zip(new, written, strict=True):
            for file in leaf.spooled:
                file.unlink()


def _leaves(bits: str, buckets: "_Buckets", shard_bytes: int) -> Iterator[_Leaf | str]:
    """The leaves below a prefix of the ids, from buckets that hold documents by the first `buckets.depth` bits; of
    those that do not fit into memory their prefix.

    For example, with buckets of depth 2 and at most 100 bytes a shard:

        bucket      00   01   10   11
        bytes       40   30   90   900

    The root (160 + 900 bytes) splits. Prefix 0 has 70 bytes and becomes the leaf `b0`. Prefix 1 splits into 10, the
    leaf `b10`, and 11, which is still too large at the depth of the buckets. If it fits into memory (4 shards),
    `_write_leaf` reads it and splits it there; otherwise, as here, it is spooled again by its next bits.
    """
    size = buckets.size(bits)
    splits = size > shard_bytes and buckets.hold_several(bits) and len(bits) < MAXIMUM_BITS
    if splits and len(bits) < buckets.depth:
        for bit in "01":
            yield from _leaves(bits + bit, buckets, shard_bytes)
    elif splits and size > SPOOL_SHARDS * shard_bytes:
        yield bits
    elif buckets.under(bits):
        yield buckets.leaf(bits)


def _copy_leaf(folder: Path, shard_bytes: int, leaf: _Leaf) -> bool:
    """Copy the shards of a leaf from the cache, if the last runs wrote all of them."""
    shards = list(_shards(leaf.bits, leaf.documents(), shard_bytes))
    entries = [find_cached(CACHE_NAME, _shard_key(documents), _write_shard) for _, documents in shards]
    known = [entry for entry in entries if entry is not None]
    if len(known) < len(shards):
        return False
    for (bits, _), entry in zip(shards, known, strict=True):
        shutil.copyfile(entry / SHARD, _shard_path(folder, bits))
    return True


def _write_leaf(folder: Path, shard_bytes: int, leaf: _Leaf) -> None:
    """Write the shards of a leaf, or copy them from the cache: compressing costs more than all the rest."""
    for bits, documents in _shards(leaf.bits, leaf.documents(), shard_bytes):
        entry = cached(CACHE_NAME, _shard_key(documents), partial(_write_shard, documents))
        shutil.copyfile(entry / SHARD, _shard_path(folder, bits))


def _shards(bits: str, documents: list[Document], shard_bytes: int) -> Iterator[tuple[str, list[Document]]]:
    """The shards of a leaf: their prefixes and documents."""
    size = sum(document.size for document in documents)
    if size > shard_bytes and documents[0].id != documents[-1].id and len(bits) < MAXIMUM_BITS:
        for bit in "01":
            prefix = bits + bit
            yield from _shards(prefix, [d for d in documents if id_bits(d.id, len(prefix)) == prefix], shard_bytes)
    elif documents:
        yield bits, documents


def _shard_path(folder: Path, bits: str) -> Path:
    return folder / f"b{bits}.parquet"


def _shard_key(documents: list[Document]) -> str:
    return cache_key(*(fact for d in documents for fact in (d.id, d.source, d.revision, d.path, d.license)))


def _write_shard(documents: list[Document], folder: Path) -> None:
    write_shard(folder / SHARD, [d.read() if isinstance(d, UnreadDocument) else d for d in documents])


def _spooled(bucket: Path) -> Iterator[Document]:
    with bucket.open("rb") as file:
        while file.peek(1):
            yield from pickle.load(file)


class _Buckets:
    """Documents in temporary files by the first `depth` bits of their ids, a bounded number of bytes in memory."""

    def __init__(self, folder: Path, depth: int) -> None:
        self.folder = folder
        self.depth = depth
        self._sizes: dict[str, int] = {}
        self._first_ids: dict[str, str] = {}
        self._several: set[str] = set()
        self._spooled: set[str] = set()
        self._waiting: dict[str, list[Document]] = {}
        self._waiting_bytes = 0

    def add(self, document: Document) -> None:
        bits = id_bits(document.id, self.depth)
        self._waiting.setdefault(bits, []).append(document)
        self._sizes[bits] = self._sizes.get(bits, 0) + document.size
        if self._first_ids.setdefault(bits, document.id) != document.id:
            self._several.add(bits)
        self._waiting_bytes += UNREAD_BYTES if isinstance(document, UnreadDocument) else document.size
        if self._waiting_bytes > SPOOL_BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        for bits, documents in self._waiting.items():
            with (self.folder / bits).open("ab") as file:
                pickle.dump(documents, file, protocol=pickle.HIGHEST_PROTOCOL)
            self._spooled.add(bits)
        self._waiting = {}
        self._waiting_bytes = 0

    def under(self, bits: str) -> list[str]:
        """The buckets with documents under a prefix."""
        return sorted(bucket for bucket in self._sizes if bucket.startswith(bits))

    def size(self, bits: str) -> int:
        """Bytes of text under a prefix."""
        return sum(self._sizes[bucket] for bucket in self.under(bits))

    def hold_several(self, bits: str) -> bool:
        """Whether documents with different ids lie under a prefix."""
        buckets = self.under(bits)
        return len(buckets) > 1 or not self._several.isdisjoint(buckets)

    def leaf(self, bits: str) -> _Leaf:
        """The documents under a prefix."""
        buckets = self.under(bits)
        spooled = [self.folder / bucket for bucket in buckets if bucket in self._spooled]
        return _Leaf(bits, spooled, [document for bucket in buckets for document in self._waiting.get(bucket, [])])

    def read(self, bits: str) -> Iterator[Document]:
        """The same, not all in memory at once; from the disk they are deleted."""
        leaf = self.leaf(bits)
        for bucket in leaf.spooled:
            yield from _spooled(bucket)
            bucket.unlink()
        yield from leaf.waiting
