"""Documents as sets of words with their MinHash signatures, a shard at a time, kept from run to run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

from stages.clean.similarity.words import WordKind, word_sets
from stages.formats.documents import read_shard
from stages.runtime.cache import cache_key, map_cached, shard_sha256

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


def read_words(shards: Sequence[Path], permutations: int, kind: WordKind) -> Iterator[ShardWords]:
    """The words of each shard, in the order of the shards. Only new shards are computed."""
    key = cache_key(str(permutations), kind)
    compute = partial(_compute, permutations, kind)
    for entry in map_cached("words", shards, lambda shard: cache_key(key, shard_sha256(shard)), compute):
        yield ShardWords(
            *(np.asarray(np.load(entry / f"{name}.npy", mmap_mode="r")) for name in ("words", "offsets", "signatures"))
        )


def _compute(permutations: int, kind: WordKind, shard: Path, folder: Path) -> None:
    sets = word_sets(read_shard(shard, ["text"]).column("text"), kind)
    hashed = RMinHash.hash_token_sets(sets)
    signatures: Any = RMinHash.digest_matrix_from_token_hash_sets(hashed, permutations, SEED).to_rows()
    sorted_hashes = [np.sort(np.array(hashes, dtype=np.uint64)) for hashes in hashed]
    lengths = np.array(list(map(len, hashed)), dtype=np.int64)
    np.save(folder / "words.npy", np.concatenate([np.empty(0, dtype=np.uint64), *sorted_hashes]))
    np.save(folder / "offsets.npy", np.cumulative_sum(lengths, include_initial=True))
    np.save(folder / "signatures.npy", np.array(signatures, dtype=np.uint32).reshape(len(sets), permutations))
