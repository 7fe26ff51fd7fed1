"""The words of documents, by which near-duplicates and passages of evaluation sets are found, with their MinHash
signatures, a shard at a time, kept from run to run.

A word is a run of letters, digits, marks and underscores of any script. Chinese, Japanese, Thai and others are written
without spaces between words, so there each pair of neighboring characters is a word, as in Lucene's CJK analyzer: a
run of four characters 1234 has the words 12, 23, 34.

Words are found and hashed for all bytes of several texts at once. To make them Python objects would cost three times as
much as everything here.
"""

import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import regex
from rensa import RMinHash

from stages.formats.documents import read_shard
from stages.runtime.atomic import known_sha256
from stages.runtime.cache import map_cached

PERMUTATIONS = 256
"""Length of the MinHash signatures that propose pairs. More: fewer comparisons, more time and disk."""

SIGNATURES = "signatures"
"""In an entry of the cache: row after row of a matrix with a column for each document."""

SEED = 0
"""Seed of the permutations. Another seed proposes other candidates; after the exact check the clusters are almost the
same."""

WordHashes = npt.NDArray[np.uint64]

WordPositions = npt.NDArray[np.int64]

Spans = tuple[WordPositions, WordPositions]
"""The start and the end of each word, in bytes."""

NO_WORD, RUN, PAIRED = range(3)
"""A character's class: outside of words; in a run that is one word; in a run whose neighboring pairs are words."""

WORD_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
TO_WORDS = bytes(byte if byte in WORD_BYTES else ord(" ") for byte in range(256))
IN_WORD = bytes(RUN if byte in WORD_BYTES else NO_WORD for byte in range(256))

_WITHOUT_SPACES = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
WORD_PATTERN = regex.compile(rf"[[\p{{L}}\p{{M}}\p{{N}}_]--[{_WITHOUT_SPACES}]]+|[{_WITHOUT_SPACES}]+", regex.V1)
WRITTEN_WITHOUT_SPACES = regex.compile(rf"[{_WITHOUT_SPACES}]", regex.V1)

PASSAGE_WORDS = 5
"""As datatrove and text-dedup have it."""

SIGNATURE_SIZE = 64
"""Numbers that stand for the passages of a document."""

EMPTY_SLOT = np.uint32(2**32 - 1)

BATCH_BYTES = 2**20
"""Bytes of text that are cut and hashed at once."""


def word_list(text: str) -> list[bytes]:
    """The words of a text in their order, as UTF-8."""
    if text.isascii():
        return text.encode("utf-8").translate(TO_WORDS).split()
    words: list[str] = []
    # Composed (NFC), so that both ways to write an accent give the same word.
    for word in WORD_PATTERN.findall(unicodedata.normalize("NFC", text)):
        if len(word) > 1 and WRITTEN_WITHOUT_SPACES.match(word):
            words.extend(first + second for first, second in pairwise(word))
        else:
            words.append(word)
    return [word.encode("utf-8") for word in words]


def word_hashes(texts: Iterable[str]) -> Iterator[WordHashes]:
    """The hashes of each text's words, in the order of `word_list`, several texts at once."""
    for is_ascii, group in groupby(texts, str.isascii):
        # ASCII, as most documents of code are, takes less work: each character is a byte.
        spans = byte_spans if is_ascii else character_spans
        batch, size = [], 0
        for text in group:
            # Composed (NFC), so that both ways to write an accent give the same word.
            batch.append((text if is_ascii else unicodedata.normalize("NFC", text)).encode("utf-8"))
            size += len(batch[-1])
            if size >= BATCH_BYTES:
                yield from _hashes_of(batch, spans)
                batch, size = [], 0
        yield from _hashes_of(batch, spans)


def _hashes_of(documents: Sequence[bytes], spans: Callable[[bytes], Spans]) -> Iterator[WordHashes]:
    data = b"\0".join([b"", *documents, b""])
    begins = np.cumsum([1, *(len(document) + 1 for document in documents)])
    starts, ends = spans(data)
    hashes = hashed(data, starts, ends)
    for start, stop in pairwise(np.searchsorted(starts, begins).tolist()):
        yield hashes[start:stop]


SURROGATES = slice(0xD800, 0xE000)
"""No characters: UTF-8 does not have them."""


@cache
def kinds() -> npt.NDArray[np.uint8]:
    """`NO_WORD`, `RUN` or `PAIRED` for each code point; takes a tenth of a second."""
    numbers = np.arange(sys.maxunicode + 1, dtype="<u4")
    numbers[SURROGATES] = 0
    found = np.full(len(numbers), NO_WORD, dtype=np.uint8)
    for word in WORD_PATTERN.finditer(numbers.tobytes().decode("utf-32-le")):
        found[word.start() : word.end()] = PAIRED if WRITTEN_WITHOUT_SPACES.match(word[0]) else RUN
    return found


def distinct(hashes: WordHashes) -> WordHashes:
    """The different ones, sorted."""
    hashes = np.sort(hashes)
    is_first = np.ones(len(hashes), dtype=bool)
    np.not_equal(hashes[1:], hashes[:-1], out=is_first[1:])
    return hashes[is_first]


def passages(hashes: WordHashes) -> npt.NDArray[np.uint32]:
    """A signature of the passages of five words (one-permutation hashing, Li et al. 2012): two texts have as large a
    share of its numbers in common as of their passages. Shape (SIGNATURE,); `EMPTY_SLOT` if no passage falls."""
    count = max(len(hashes) - PASSAGE_WORDS + 1, 1)
    found = np.zeros(count, dtype=np.uint64)
    for start in range(PASSAGE_WORDS):
        words = hashes[start : start + count]
        found[: len(words)] = found[: len(words)] * np.uint64(BASE) + words
    found = _mixed(found)
    smallest = np.full(SIGNATURE_SIZE, EMPTY_SLOT, dtype=np.uint32)
    np.minimum.at(smallest, found % np.uint64(SIGNATURE_SIZE), (found >> np.uint64(32)).astype(np.uint32))
    return smallest


class ShardWords(NamedTuple):
    """The words of a shard's documents, mapped from the cache."""

    words: WordHashes
    """64-bit hashes of each document's distinct words, sorted, one document after the other."""
    offsets: npt.NDArray[np.int64]
    """Document i has words[offsets[i]:offsets[i + 1]]."""
    passages: npt.NDArray[np.uint32]
    """A sketch of each document's passages; shape (documents, SIGNATURE)."""

    def of(self, row: int) -> WordHashes:
        """The words of one document."""
        return self.words[self.offsets[row] : self.offsets[row + 1]]


def cached_words(shards: Sequence[Path]) -> list[Path]:
    """The folder of each shard's words, in the order of the shards. Only new shards are computed."""
    return map_cached("words", shards, known_sha256, _compute)


@lru_cache(60)  # each takes two file descriptors, and shells limit those of a process to 1,024 (macOS: 256)
def read_words(folder: Path) -> ShardWords:
    """The words of a shard."""
    words, passages = (np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in ("words", "passages"))
    return ShardWords(words, np.load(folder / "offsets.npy"), passages)


def distinct_words(folder: Path) -> WordPositions:
    """How many distinct words each document of a shard has."""
    counts: WordPositions = np.diff(np.load(folder / "offsets.npy"))
    return counts


def read_band(folder: Path, start: int, rows: int) -> npt.NDArray[np.uint32]:
    """These rows of a shard's MinHash signatures (Broder 1997), without the others; shape (rows, documents)."""
    file = folder / SIGNATURES
    documents = file.stat().st_size // (4 * PERMUTATIONS)
    return np.fromfile(file, np.uint32, rows * documents, offset=4 * start * documents).reshape(rows, documents)


def _compute(shard: Path, folder: Path) -> None:
    hashed, signed = [], []
    for hashes in word_hashes(read_shard(shard, ["text"]).column("text").to_pylist()):
        signed.append(passages(hashes))
        hashed.append(distinct(hashes))
    words = np.concatenate([np.empty(0, dtype=np.uint64), *hashed])
    offsets = np.cumulative_sum(np.array(list(map(len, hashed)), dtype=np.int64), include_initial=True)
    digests: Any = RMinHash.digest_matrix_from_flat_token_hashes(words, offsets, PERMUTATIONS, SEED)
    np.save(folder / "words.npy", words)
    np.save(folder / "offsets.npy", offsets)
    np.save(folder / "passages.npy", np.array(signed, dtype=np.uint32).reshape(len(signed), SIGNATURE_SIZE))
    np.array(digests.to_rows(), dtype=np.uint32).reshape(len(hashed), PERMUTATIONS).T.tofile(folder / SIGNATURES)


def byte_spans(data: bytes) -> Spans:
    """The spans of words of ASCII letters, digits and underscores, in order. The first and the last byte must not be
    part of a word."""
    is_word = np.frombuffer(data.translate(IN_WORD), dtype=np.bool_)
    edges = np.flatnonzero(is_word[1:] != is_word[:-1]) + 1
    return edges[::2], edges[1::2]


def character_spans(data: bytes) -> Spans:
    """The spans of words of UTF-8 text, in order. The first and the last character must not be part of a word.

    For example, with r for a character of a run, p for a paired one and - for any other:

        character   0 1 2 3 4 5 6 7 8 9      words   1..3, 4..6, 5..7 and 8..9
        kind        - r r - p p p - p -
    """
    found = kinds()[np.frombuffer(data.decode("utf-8").encode("utf-32-le"), dtype="<u4")]
    before, here, after = found[:-2], found[1:-1], found[2:]
    begins_run = (here == RUN) & (before != RUN)
    begins_pair = (here == PAIRED) & ((after == PAIRED) | (before != PAIRED))
    first = np.flatnonzero(begins_run | begins_pair) + 1
    end = first + 1 + (found[first + 1] == PAIRED)
    end[found[first] == RUN] = np.flatnonzero((here == RUN) & (after != RUN)) + 2
    # In UTF-8 the bytes after the first of a character are 0x80 to 0xBF: as signed numbers the smallest.
    byte_of = np.flatnonzero(np.frombuffer(data, dtype=np.int8) >= -0x40)
    return byte_of[first], byte_of[end]


HASHED_BYTES = 2**16
"""Bytes at a time, so that intermediate results stay in the processor's cache."""

BASE = 0xF1357AEA2E62A9C5
MIXER = np.uint64(0xD6E8FEB86659FD93)
"""Odd numbers, so that multiplying by them loses nothing."""


def hashed(data: bytes, starts: WordPositions, ends: WordPositions) -> WordHashes:
    """A 64-bit hash of each word data[start:end], none of which has a byte of 0.

    It is the polynomial of the word's bytes in BASE, modulo 2**64, as of Karp and Rabin (1987): the difference of two
    sums over the text's bytes, times a power that takes the word's place away. Then its bits are mixed: short words
    that differ in one byte would be an arithmetic progression, to which MinHash is not fair.
    """
    hashes = np.empty(len(starts), dtype=np.uint64)
    ends = np.minimum(ends, starts + HASHED_BYTES)  # a longer word is data, and its beginning tells it from others
    content, (powers, inverses) = np.frombuffer(data, np.uint8), _powers(HASHED_BYTES)
    first = 0
    while first < len(starts):
        begin = int(starts[first])
        stop = int(np.searchsorted(ends, begin + HASHED_BYTES, "right"))
        block = slice(first, stop)
        terms = content[begin : ends[stop - 1]]
        sums = np.cumulative_sum(terms * powers[: len(terms)], include_initial=True)
        hashes[block] = (sums[ends[block] - begin] - sums[starts[block] - begin]) * inverses[starts[block] - begin]
        first = stop
    return _mixed(hashes)


def _mixed(hashes: WordHashes) -> WordHashes:
    hashes = (hashes ^ (hashes >> np.uint64(32))) * MIXER
    return hashes ^ (hashes >> np.uint64(32))


@cache
def _powers(count: int) -> tuple[WordHashes, WordHashes]:
    """The first powers of BASE, and of the number that takes them back."""
    factors = (BASE, pow(BASE, -1, 2**64))
    powers, inverses = (np.cumprod(np.full(count, factor, np.uint64), dtype=np.uint64) for factor in factors)
    return powers, inverses
