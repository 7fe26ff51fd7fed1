"""The words of documents, by which near-duplicates and passages of evaluation sets are found, with their MinHash
signatures, a shard at a time, kept from run to run.

Two ways to cut a text into words, chosen by `clean.words`:

- `unicode`: runs of letters, digits, marks and underscores of any script. Chinese, Japanese, Thai and others are
  written without spaces between words, so there each pair of neighbouring characters is a word, as in Lucene's CJK
  analyzer: a run of four characters 1234 has the words 12, 23, 34.
- `ascii`: runs of `[A-Za-z0-9_]`, as CodeParrot cuts them. Text of other scripts has no words.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import regex
from rensa import RMinHash

from stages.formats.documents import read_shard
from stages.runtime.cache import cache_key, map_cached, shard_sha256

WordKind = Literal["unicode", "ascii"]

SEED = 0
"""Of the permutations. Another one gives other candidates, and after the exact check almost the same clusters."""

WordHashes = npt.NDArray[np.uint64]

WORD_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
TO_WORDS = bytes(byte if byte in WORD_BYTES else ord(" ") for byte in range(256))

_WITHOUT_SPACES = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
WORD = regex.compile(rf"[[\p{{L}}\p{{M}}\p{{N}}_]--[{_WITHOUT_SPACES}]]+|[{_WITHOUT_SPACES}]+", regex.V1)
WRITTEN_WITHOUT_SPACES = regex.compile(rf"[{_WITHOUT_SPACES}]", regex.V1)


def word_list(text: str, kind: WordKind) -> list[bytes]:
    """The words of a text in their order, as UTF-8."""
    if kind == "ascii" or text.isascii():
        return text.encode("utf-8").translate(TO_WORDS).split()
    words: list[str] = []
    # Composed (NFC), so that both ways to write an accent give the same word.
    for word in WORD.findall(unicodedata.normalize("NFC", text)):
        if len(word) > 1 and WRITTEN_WITHOUT_SPACES.match(word):
            words.extend(first + second for first, second in pairwise(word))
        else:
            words.append(word)
    return [word.encode("utf-8") for word in words]


def word_sets(texts: pa.ChunkedArray, kind: WordKind) -> list[set[bytes]]:
    """The distinct words of each text.

    They are cut from the column's memory where they can be: making each one a text first would cost as much again.
    """
    sets: list[set[bytes]] = []
    for chunk in texts.chunks:
        _, offsets, buffer = chunk.buffers()
        data = buffer.to_pybytes() if buffer else b""
        ends = np.frombuffer(offsets, dtype=np.int32)[chunk.offset : chunk.offset + len(chunk) + 1].tolist()
        in_ascii = data.translate(TO_WORDS)
        for start, stop in pairwise(ends):
            if kind == "ascii" or data[start:stop].isascii():
                sets.append(set(in_ascii[start:stop].split()))
            else:
                sets.append(set(word_list(data[start:stop].decode("utf-8"), kind)))
    return sets


@dataclass(frozen=True, slots=True)
class ShardWords:
    """The words of a shard's documents, mapped from the cache: nothing is held in memory."""

    words: WordHashes
    """64-bit hashes of each document's distinct words, sorted, one document after the other."""
    offsets: npt.NDArray[np.int64]
    """Document i has words[offsets[i]:offsets[i + 1]]."""
    signatures: npt.NDArray[np.uint32]
    """MinHash (Broder 1997); shape (documents, permutations)."""

    def of(self, row: int) -> WordHashes:
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
