"""The words of a text, by which near-duplicates and passages of evaluation sets are found.

Two ways to cut a text into words, chosen by `clean.words`:

- `unicode`: runs of letters, digits, marks and underscores of any script. Chinese, Japanese, Thai and others are
  written without spaces between words, so there each pair of neighbouring characters is a word, as in Lucene's CJK
  analyzer: a run of four characters 1234 has the words 12, 23, 34.
- `ascii`: runs of `[A-Za-z0-9_]`, as CodeParrot cuts them. Text of other scripts has no words.
"""

import unicodedata
from itertools import pairwise
from typing import Literal

import numpy as np
import pyarrow as pa
import regex

WordKind = Literal["unicode", "ascii"]

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
