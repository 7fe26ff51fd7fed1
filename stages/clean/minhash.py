"""Documents as sets of words with their MinHash signatures, a shard at a time, kept from run to run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rensa import RMinHash

from stages.formats.documents import read_shard
from stages.runtime.shard_cache import cache_key, map_cached, shard_sha256

WORD_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
TO_WORDS = bytes(byte if byte in WORD_BYTES else ord(" ") for byte in range(256))

SEED = 0
"""Of the permutations. Another one gives other candidates, and after the exact check almost the same clusters."""

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class ShardWords:
    """The words of a shard's documents, mapped from the cache: nothing is held in memory."""

    words: Hashes
    """64-bit hashes of each document's distinct words, sorted, one document after the other."""
    offsets: npt.NDArray[np.int64]
    """Document i has words[offsets[i]:offsets[i + 1]]."""
    signatures: npt.NDArray[np.uint32]
    """MinHash (Broder 1997); shape (documents, permutations)."""

    def of(self, row: int) -> Hashes:
        """The words of one document."""
        return self.words[self.offsets[row] : self.offsets[row + 1]]


def read_words(shards: Sequence[Path], permutations: int) -> Iterator[ShardWords]:
    """The words of each shard, in the order of the shards. Only new shards are computed."""
    compute = partial(_compute, permutations)
    for entry in map_cached("words", shards, lambda shard: cache_key(str(permutations), shard_sha256(shard)), compute):
        words, offsets, signatures = (
            np.asarray(np.load(entry / f"{name}.npy", mmap_mode="r")) for name in ("words", "offsets", "signatures")
        )
        yield ShardWords(words, offsets, signatures)


def _compute(permutations: int, shard: Path, folder: Path) -> None:
    sets = word_sets(read_shard(shard, ["text"]).column("text"))
    hashed = RMinHash.hash_token_sets(sets)
    signatures: Any = RMinHash.digest_matrix_from_token_hash_sets(hashed, permutations, SEED).to_rows()
    lengths = np.array(list(map(len, hashed)), dtype=np.int64)
    words = [np.sort(np.array(hashes, dtype=np.uint64)) for hashes in hashed]
    np.save(folder / "words.npy", np.concatenate(words) if words else np.empty(0, dtype=np.uint64))
    np.save(folder / "offsets.npy", np.cumulative_sum(lengths, include_initial=True))
    np.save(folder / "signatures.npy", np.array(signatures, dtype=np.uint32).reshape(len(sets), permutations))


def word_sets(texts: pa.ChunkedArray) -> list[set[bytes]]:
    """`word_set` of each text, cut from the column's memory: making each one a text first would cost as much again."""
    sets: list[set[bytes]] = []
    for chunk in texts.chunks:
        _, offsets, data = chunk.buffers()
        places = np.frombuffer(offsets, dtype=np.int32)[chunk.offset : chunk.offset + len(chunk) + 1].tolist()
        words = data.to_pybytes().translate(TO_WORDS) if data else b""
        sets.extend(set(words[start:stop].split()) for start, stop in pairwise(places))
    return sets


def word_set(text: str) -> set[bytes]:
    """The distinct runs of letters, digits and underscores of a text, as CodeParrot cuts it."""
    return set(text.encode("utf-8").translate(TO_WORDS).split())
