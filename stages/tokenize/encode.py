"""Encodes shards of documents into shards of tokens, each once: what was encoded before is taken from the cache."""

import json
import shutil
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from stages.formats.documents import read_shard, text_size
from stages.formats.tokens import MANIFEST, Manifest, ShardEntry
from stages.runtime.cache import cache_key, map_cached, shard_sha256
from stages.runtime.entry import UserError
from stages.tokenize.engines import Engine, open_engine
from stages.tokenize.store import smallest_dtype, write_token_shard
from stages.tokenize.vocabulary import Vocabulary

ENTRY = "entry.json"

THREADS_EACH = 4
"""Both engines encode a batch with threads of their own; about this many are busy in each process."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """What every shard is encoded with."""

    vocabulary: Vocabulary
    engine: str
    """Its name with its version."""

    @property
    def key(self) -> str:
        """Changes with anything but its documents that a shard's bytes depend on."""
        return cache_key(self.vocabulary.sha256, str(self.vocabulary.eos_id), self.engine)


def write_store(shards: Sequence[Path], encoding: Encoding, folder: Path) -> Manifest:
    """Write the token store of a split into an existing folder, a shard for a shard."""
    entries = []
    caches = map_cached("tokens", shards, partial(shard_key, encoding), partial(encode_shard, encoding), THREADS_EACH)
    for cache in caches:
        entries.append(ShardEntry(**json.loads((cache / ENTRY).read_text(encoding="utf-8"))))
        for name in entries[-1].sha256:
            shutil.copyfile(cache / name, folder / name)
    manifest = Manifest(
        dtype=smallest_dtype(encoding.vocabulary.size),
        vocab_size=encoding.vocabulary.size,
        eos_id=encoding.vocabulary.eos_id,
        tokenizer_sha256=encoding.vocabulary.sha256,
        # Without its version: a release that gives the same ids leaves the store as it was.
        engine=encoding.engine.split()[0],
        shards=tuple(entries),
    )
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def shard_key(encoding: Encoding, shard: Path) -> str:
    """Changes with anything that one shard's files depend on."""
    return cache_key(encoding.key, shard.stem, shard_sha256(shard))


_opening = threading.Lock()


def _opened(encoding: Encoding) -> Engine:
    """The engine, opened once in a process."""
    with _opening:
        return _open(encoding.engine, encoding.vocabulary.tokenizer_json, encoding.vocabulary.sha256)


@lru_cache(maxsize=1)
def _open(name: str, tokenizer_json: Path, sha256: str) -> Engine:
    # The hash is part of the key: a path may come to hold another tokenizer within one process.
    return open_engine(name, tokenizer_json)


def encode_shard(encoding: Encoding, shard: Path, folder: Path) -> None:
    """Write one shard's three files and its entry for the manifest.

    Raises UserError if a text became a special token.
    """
    vocabulary = encoding.vocabulary
    table = read_shard(shard)
    texts = table.column("text").to_pylist()
    ids, lengths = _opened(encoding).encode(texts)
    if np.isin(ids, list(vocabulary.special_ids)).any():
        raise UserError(
            f"{shard}: text became a special token under {encoding.engine}; this tokenizer does not keep "
            "special tokens apart from text, so documents could end in the middle: choose another one"
        )
    infos = [
        row | {"bytes": text_size(text)}
        for row, text in zip(table.drop_columns("text").to_pylist(), texts, strict=True)
    ]
    dtype = smallest_dtype(vocabulary.size)
    entry = write_token_shard(folder, shard.stem, ids, lengths, infos, vocabulary.eos_id, dtype)
    (folder / ENTRY).write_text(json.dumps(asdict(entry), sort_keys=True), encoding="utf-8")
