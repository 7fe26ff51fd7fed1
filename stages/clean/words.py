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
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import regex
from rensa import RMinHash

from stages.clean.vectorized.code_points import CharacterTable, beyond_ascii, is_composed
from stages.clean.vectorized.fxhash import PADDING, fxhash
from stages.clean.vectorized.word_spans import NO_WORD, PAIRED, RUN, word_spans
from stages.formats.documents import read_shard
from stages.runtime.cache import cache_key, map_cached, shard_sha256

WordKind = Literal["unicode", "ascii"]

SEED = 0
"""Of the permutations. Another one gives other candidates, and after the exact check almost the same clusters."""

WordHashes = npt.NDArray[np.uint64]

WORD_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
TO_WORDS = bytes(byte if byte in WORD_BYTES else ord(" ") for byte in range(256))
ASCII_KINDS = bytes(RUN if byte in WORD_BYTES else NO_WORD for byte in range(256))

_WITHOUT_SPACES = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
WORD = regex.compile(rf"[[\p{{L}}\p{{M}}\p{{N}}_]--[{_WITHOUT_SPACES}]]+|[{_WITHOUT_SPACES}]+", regex.V1)
WRITTEN_WITHOUT_SPACES = regex.compile(rf"[{_WITHOUT_SPACES}]", regex.V1)

BATCH_BYTES = 2**20
"""Of texts that are cut and hashed at once."""


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


def word_hashes(texts: pa.ChunkedArray, kind: WordKind) -> Iterator[WordHashes]:
    """The hashes of each text's distinct words, sorted: those of `word_list`, several texts at once."""
    kinds = _kinds() if kind == "unicode" else None
    for batch in _batches(texts):
        documents = [_composed(document) for document in batch] if kind == "unicode" else batch
        data = b"\0" * PADDING + b"\0".join(documents) + b"\0" * PADDING
        begins = np.cumsum([PADDING, *(len(document) + 1 for document in documents)])
        starts, ends = word_spans(data, ASCII_KINDS, kinds)
        hashes = fxhash(data, starts, ends)
        for start, stop in pairwise(np.searchsorted(starts, begins).tolist()):
            yield _distinct(hashes[start:stop])


def _batches(texts: pa.ChunkedArray) -> Iterator[list[bytes]]:
    """The UTF-8 of the texts, cut from the column's memory: making each one a text first would cost as much again."""
    batch, size = [], 0
    for chunk in texts.chunks:
        _, offsets, buffer = chunk.buffers()
        data = buffer.to_pybytes() if buffer else b""
        ends = np.frombuffer(offsets, dtype=np.int32)[chunk.offset : chunk.offset + len(chunk) + 1].tolist()
        for start, stop in pairwise(ends):
            batch.append(data[start:stop])
            size += stop - start
            if size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
    yield batch


def _composed(document: bytes) -> bytes:
    """UTF-8 text in NFC."""
    if document.isascii() or is_composed(beyond_ascii(document)):
        return document
    return unicodedata.normalize("NFC", document.decode("utf-8")).encode("utf-8")


@cache
def _kinds() -> CharacterTable:
    return CharacterTable(WORD, lambda word: PAIRED if WRITTEN_WITHOUT_SPACES.match(word) else RUN)


def _distinct(hashes: WordHashes) -> WordHashes:
    hashes.sort()
    is_first = np.ones(len(hashes), dtype=bool)
    np.not_equal(hashes[1:], hashes[:-1], out=is_first[1:])
    return hashes[is_first]


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
    hashed = list(word_hashes(read_shard(shard, ["text"]).column("text"), kind))
    words = np.concatenate([np.empty(0, dtype=np.uint64), *hashed])
    offsets = np.cumulative_sum(np.array(list(map(len, hashed)), dtype=np.int64), include_initial=True)
    digests: Any = RMinHash.digest_matrix_from_flat_token_hashes(words, offsets, permutations, SEED)
    np.save(folder / "words.npy", words)
    np.save(folder / "offsets.npy", offsets)
    np.save(folder / "signatures.npy", np.array(digests.to_rows(), dtype=np.uint32).reshape(len(hashed), permutations))
