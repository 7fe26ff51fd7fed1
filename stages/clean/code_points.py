"""Properties of characters as tables over code points: a text is looked up at once, not a character at a time."""

import re
import sys
import unicodedata
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
import regex

CodePoints = npt.NDArray[np.uint32]

CharacterNumbers = npt.NDArray[np.uint8]

ASCII = bytes(range(128))
SURROGATES = slice(0xD800, 0xE000)
"""No characters: UTF-8 does not have them."""

BLOCK = 2**12
"""Characters that are looked at together when one of them is met first: a text has few scripts, and to look at all of
Unicode takes a tenth of a second."""

UNEXAMINED = 0x30000
"""Characters from here on are rare, and of unknown combining class here."""

UNSURE, UNKNOWN = 255, 254
"""In place of a combining class, which is at most 240; and of a number that is not known yet."""


def beyond_ascii(data: bytes) -> CodePoints:
    """The characters of UTF-8 text that are not ASCII, in their order."""
    return np.frombuffer(data.translate(None, ASCII).decode("utf-8").encode("utf-32-le"), dtype="<u4")


class CharacterTable:
    """A small number for each character that is part of a match of a pattern in a text of all characters, 0 for any
    other; the pattern matches runs of characters of a kind."""

    def __init__(
        self, pattern: re.Pattern[str] | regex.Pattern[str], number_of: Callable[[str], int] = lambda _: 1
    ) -> None:
        self._pattern = pattern
        self._number_of = number_of
        self._numbers = np.full(sys.maxunicode + 1, UNKNOWN, dtype=np.uint8)

    def __getitem__(self, code_points: CodePoints) -> CharacterNumbers:
        """The number of each."""
        found: CharacterNumbers = self._numbers[code_points]
        if (is_unknown := found == UNKNOWN).any():
            for block in np.unique(code_points[is_unknown] // BLOCK).tolist():
                self._find_out(block * BLOCK, min((block + 1) * BLOCK, len(self._numbers)))
            found = self._numbers[code_points]
        return found

    def _find_out(self, first: int, end: int) -> None:
        code_points = np.arange(first, end, dtype="<u4")
        code_points[(code_points >= SURROGATES.start) & (code_points < SURROGATES.stop)] = 0
        numbers = np.zeros(len(code_points), dtype=np.uint8)
        for match in self._pattern.finditer(code_points.tobytes().decode("utf-32-le")):
            numbers[match.start() : match.end()] = self._number_of(match[0])
        self._numbers[first:end] = numbers


ALPHANUMERIC = CharacterTable(re.compile(r"[^\W_]+"))
"""1 for what `str.isalnum` is true of."""

SPACE = CharacterTable(re.compile(r"\s+"))
"""1 for what `str.isspace` is true of."""


def is_composed(code_points: CodePoints) -> bool:
    """Whether a text with these characters beyond ASCII is in NFC; False also where only a closer look can tell.

    The quick check of Unicode Standard Annex 15, section 9: no character that NFC replaces or may join to the one
    before it, and combining marks in their order. `unicodedata.normalize` has it too, a character at a time.
    """
    classes = _combining_classes()[code_points]
    return not (classes.max(initial=0) == UNSURE or ((classes[1:] > 0) & (classes[1:] < classes[:-1])).any())


@cache
def _combining_classes() -> CharacterNumbers:
    """The canonical combining class of each character, or UNSURE."""
    classes = np.full(sys.maxunicode + 1, UNSURE, dtype=np.uint8)
    characters = list(map(chr, range(UNEXAMINED)))
    classes[:UNEXAMINED] = list(map(unicodedata.combining, characters))
    for character, decomposed in zip(characters, map(unicodedata.decomposition, characters), strict=True):
        if decomposed and not decomposed.startswith("<"):
            # The last part of a composed character composes with what is before it.
            classes[int(decomposed.split()[-1], 16)] = UNSURE
            if unicodedata.normalize("NFC", character) != character:
                classes[ord(character)] = UNSURE
    # The vowels and final consonants of Hangul compose by a rule, not by a table.
    classes[0x1161:0x1176] = classes[0x11A8:0x11C3] = UNSURE
    return classes
