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

UNKNOWN = 255
"""In place of a number that is not known yet."""


def beyond_ascii(data: bytes) -> CodePoints:
    """The characters of UTF-8 text that are not ASCII, in their order."""
    return code_points(data.translate(None, ASCII).decode("utf-8"))


def code_points(text: str) -> CodePoints:
    """The characters of a text as numbers."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


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


def composed(document: bytes) -> bytes:
    """UTF-8 text in NFC. Most is already, or nearly: a table tells where many times as fast as `unicodedata`."""
    if not _may_change(_classes()[beyond_ascii(document)]).any():
        return document
    text = document.decode("utf-8")
    classes = _classes()[code_points(text)]
    # What is before a character of class 0 that is not replaced, and what begins with it, are composed apart.
    cuts = np.append(np.flatnonzero(classes == 0), len(text))
    places = np.unique(np.searchsorted(cuts, np.flatnonzero(_may_change(classes)), "right"))
    parts, copied = [], 0
    for begin, end in zip(np.append(0, cuts)[places].tolist(), cuts[places].tolist(), strict=True):
        parts += [text[copied:begin], unicodedata.normalize("NFC", text[begin:end])]
        copied = end
    return "".join([*parts, text[copied:]]).encode("utf-8")


REPLACED = 255
"""In place of the combining class: of a character that NFC may replace, or join to one before it."""

LAST_WITH_CLASS = 0x2FFFF
"""Later characters are of class 0 and have no decomposition."""

HANGUL_JOINED = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))
"""Vowels and final consonants: the decompositions of syllables are computed, not listed."""


def _may_change(classes: CharacterNumbers) -> npt.NDArray[np.bool_]:
    """At which characters a text may not be in NFC: nowhere by the quick check of Unicode's annex 15 if it is."""
    places: npt.NDArray[np.bool_] = classes == REPLACED
    places[1:] |= (classes[1:] != 0) & (classes[1:] < classes[:-1])
    return places


@cache
def _classes() -> CharacterNumbers:
    """The canonical combining class of each character, or `REPLACED`."""
    characters = list(map(chr, range(LAST_WITH_CLASS + 1)))
    classes = np.zeros(sys.maxunicode + 1, dtype=np.uint8)
    classes[: len(characters)] = np.fromiter(map(unicodedata.combining, characters), np.uint8)
    classes[list(HANGUL_JOINED)] = REPLACED
    for character, decomposition in zip(characters, map(unicodedata.decomposition, characters), strict=True):
        if decomposition and not decomposition.startswith("<"):
            if unicodedata.normalize("NFC", character) != character:
                classes[ord(character)] = REPLACED
            for second in decomposition.split()[1:]:
                classes[int(second, 16)] = REPLACED
    return classes
