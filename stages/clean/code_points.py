"""Properties of characters as tables over code points: a text is looked up at once, not a character at a time."""

import re
import sys
from collections.abc import Callable

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

UNKNOWN = 255
"""In place of a number that is not known yet."""


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
