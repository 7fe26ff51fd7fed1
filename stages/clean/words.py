"""The words of documents, by which near-duplicates and passages of evaluation sets are found, with their MinHash
signatures, a shard at a time, kept from run to run.

Two ways to cut a text into words, chosen by `clean.words`:

- `unicode`: runs of letters, digits, marks and underscores of any script. Chinese, Japanese, Thai and others are
  written without spaces between words, so there each pair of neighbouring characters is a word, as in Lucene's CJK
  analyzer: a run of four characters 1234 has the words 12, 23, 34.
- `ascii`: runs of `[A-Za-z0-9_]`, as CodeParrot cuts them. Text of other scripts has no words.

Words are found and hashed for all bytes of several texts at once. To make them Python objects would cost three times as
much as everything here.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import regex
from rensa import RMinHash

from stages.clean.code_points import CharacterTable, beyond_ascii
from stages.formats.documents import read_shard
from stages.runtime.cache import cache_key, map_cached, shard_sha256

WordKind = Literal["unicode", "ascii"]

SEED = 0
"""Of the permutations. Another one gives other candidates, and after the exact check almost the same clusters."""

WordHashes = npt.NDArray[np.uint64]

Positions = npt.NDArray[np.int64]

NO_WORD, RUN, PAIRED = range(3)
"""What a character is in: no word; a run, which is one word; a run of which each two neighbours are a word."""

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
    kinds = KINDS if kind == "unicode" else None
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
    return document if document.isascii() else unicodedata.normalize("NFC", document.decode("utf-8")).encode("utf-8")


KINDS = CharacterTable(WORD, lambda word: PAIRED if WRITTEN_WITHOUT_SPACES.match(word) else RUN)


def _distinct(hashes: WordHashes) -> WordHashes:
    hashes.sort()
    is_first = np.ones(len(hashes), dtype=bool)
    np.not_equal(hashes[1:], hashes[:-1], out=is_first[1:])
    return hashes[is_first]


class ShardWords(NamedTuple):
    """The words of a shard's documents, mapped from the cache."""

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


def word_spans(data: bytes, ascii_kinds: bytes, kinds: CharacterTable | None) -> tuple[Positions, Positions]:
    """Where each word begins and ends in UTF-8 text, in the order of their beginnings.

    `ascii_kinds` has the kind of each byte, as `bytes.translate` takes it, `kinds` that of each code point; without it
    no character beyond ASCII is part of a word. The first and the last byte must not be part of one.
    """
    of_bytes = np.frombuffer(data.translate(ascii_kinds), dtype=np.uint8)
    if kinds is None or data.isascii():
        return _runs(of_bytes == RUN)
    content = np.frombuffer(data, dtype=np.uint8)
    where = np.flatnonzero(content >= 0x80)
    # In UTF-8 the first byte of such a character is 0xC0 or more, those that follow it are less.
    first = np.flatnonzero(content[where] >= 0xC0)
    begins, sizes = where[first], np.diff(first, append=len(where))
    of_characters = kinds[beyond_ascii(data)]
    of_bytes = of_bytes.copy()
    of_bytes[where] = np.repeat(of_characters, sizes)
    starts, ends = _runs(of_bytes == RUN)
    paired = of_characters == PAIRED
    if not paired.any():
        return starts, ends
    pair_starts, pair_ends = _pairs(begins[paired], (begins + sizes)[paired])
    starts, ends = np.concatenate([starts, pair_starts]), np.concatenate([ends, pair_ends])
    order = np.argsort(starts, kind="stable")
    return starts[order], ends[order]


def _runs(is_word: npt.NDArray[np.bool_]) -> tuple[Positions, Positions]:
    edges = np.flatnonzero(is_word[1:] != is_word[:-1]) + 1
    return edges[::2], edges[1::2]


def _pairs(begins: Positions, ends: Positions) -> tuple[Positions, Positions]:
    """Each two characters that follow one another, and each character that has no such neighbour.

    For example, characters at 10..13, 13..16, 16..19 and 30..33 give 10..16, 13..19 and 30..33.
    """
    is_followed = begins[1:] == ends[:-1]
    is_alone = ~(np.append(is_followed, False) | np.append(False, is_followed))
    starts = np.concatenate([begins[:-1][is_followed], begins[is_alone]])
    return starts, np.concatenate([ends[1:][is_followed], ends[is_alone]])


PADDING = 16
"""Bytes that the text must have before its first word and after its last one: words are read 8 bytes at a time."""

HASHED_AT_ONCE = 2**16
"""Words, so that a large document takes no more memory than others."""

LONGEST = 1024
"""Bytes of a word that is hashed here. A longer one is data, and rare."""

SEED_1, SEED_2 = np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344)
NO_ZERO = np.uint64(0xA4093822299F31D0)
FACTOR = np.uint64(0xF1357AEA2E62A9C5)
HALF, LOW_HALF = np.uint64(32), np.uint64(0xFFFFFFFF)


def _by_length(of_1: int, of_2_and_3: int, of_4_to_7: int, of_8_to_16: int) -> WordHashes:
    return np.array([0, of_1, *[of_2_and_3] * 2, *[of_4_to_7] * 4, *[of_8_to_16] * 9], dtype=np.uint64)


# A word of 8 to 16 bytes is hashed by its first and last 8, one of 4 to 7 by its first and last 4, a shorter one by
# its first, its last and its middle byte.
FIRST = _by_length(0xFF, 0xFF, 0xFFFFFFFF, 2**64 - 1)
"""Bits that count of the 8 bytes from the first one on."""
LAST_SHIFT = _by_length(56, 56, 32, 0)
"""Bits that do not count of the 8 bytes up to the last one."""
LAST_PLACE = _by_length(8, 8, 0, 0)
MIDDLE_SHIFT = _by_length(0, 8, 0, 0)
MIDDLE = _by_length(0xFF, 0xFF, 0, 0)


def fxhash(data: bytes, starts: Positions, ends: Positions) -> WordHashes:
    """FxHash of each word data[start:end], none of them empty: the hash of the library rensa.

    The algorithm is that of the Rust crate rustc-hash 2.1: the first and last 8 bytes of a word, each with a constant
    mixed in, are multiplied to 128 bits, whose halves are combined.
    """
    hashes = np.empty(len(starts), dtype=np.uint64)
    for first in range(0, len(starts), HASHED_AT_ONCE):
        block = slice(first, first + HASHED_AT_ONCE)
        hashes[block] = _hashes(data, starts[block], ends[block])
    return hashes


def _hashes(data: bytes, starts: Positions, ends: Positions) -> WordHashes:
    eight_bytes: WordHashes = np.ndarray(len(data) - 7, dtype="<u8", buffer=data, strides=(1,))
    lengths = ends - starts
    row = np.minimum(lengths, 16)
    first, last = eight_bytes[starts], eight_bytes[ends - 8]
    low = SEED_1 ^ (first & FIRST[row])
    high = SEED_2 ^ (((last >> LAST_SHIFT[row]) << LAST_PLACE[row]) | ((first >> MIDDLE_SHIFT[row]) & MIDDLE[row]))
    long = np.flatnonzero((lengths > 16) & (lengths <= LONGEST))
    low[long], high[long] = _long(eight_bytes, starts[long], ends[long] - 16)
    hashes = (_mixed(low, high) ^ lengths.astype(np.uint64)) * FACTOR
    hashes = (hashes << np.uint64(26)) | (hashes >> np.uint64(38))
    for word in np.flatnonzero(lengths > LONGEST).tolist():
        hashes[word] = RMinHash.hash_token_sets([[data[starts[word] : ends[word]]]])[0][0]
    return hashes


def _long(eight_bytes: WordHashes, positions: Positions, last: Positions) -> tuple[WordHashes, WordHashes]:
    """What is multiplied of words of more than 16 bytes: 16 bytes after 16, then the last 16."""
    low, high = np.full(len(last), SEED_1), np.full(len(last), SEED_2)
    is_open = np.arange(len(last))
    while len(is_open):
        here = positions[is_open]
        mixed = _mixed(low[is_open] ^ eight_bytes[here], NO_ZERO ^ eight_bytes[here + 8])
        low[is_open], high[is_open] = high[is_open], mixed
        positions[is_open] += 16
        is_open = is_open[positions[is_open] < last[is_open]]
    return low ^ eight_bytes[last], high ^ eight_bytes[last + 8]


def _mixed(first: WordHashes, second: WordHashes) -> WordHashes:
    """The upper half of each product of 128 bits, combined with the lower half: schoolbook by halves of 32 bits."""
    low, high = first & LOW_HALF, first >> HALF
    other_low, other_high = second & LOW_HALF, second >> HALF
    left = high * other_low + ((low * other_low) >> HALF)
    right = low * other_high + (left & LOW_HALF)
    upper: WordHashes = high * other_high + (left >> HALF) + (right >> HALF)
    return upper ^ (first * second)
