"""Where the words of a text are, found for all of its bytes at once."""

import numpy as np
import numpy.typing as npt

from stages.clean.vectorized.code_points import CharacterTable, beyond_ascii

Positions = npt.NDArray[np.int64]

NO_WORD, RUN, PAIRED = range(3)
"""What a character is in: no word; a run, which is one word; a run of which each two neighbours are a word."""


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
