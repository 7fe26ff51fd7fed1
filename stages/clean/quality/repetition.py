"""How much of a text is repeated: lines, paragraphs and n-grams of words (Gopher: Rae et al. 2021, table A1).

    top_2_gram_character_share        of the n-gram that is repeated most often, all its occurrences; n = 2, 3, 4
    duplicate_5_gram_character_share  of n-grams that were there before, overlaps counted once; n = 5 ... 10

Characters of n-grams are those of their words. Words are numbered once, and n-grams compared as numbers. Only those
that occur several times are kept, since only they can be part of longer ones that do.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING, Literal

from stages.clean.filtering import Feature

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

PARAGRAPH = re.compile(r"\n\n+")

TOP_SIZES = (2, 3, 4)
DUPLICATE_SIZES = (5, 6, 7, 8, 9, 10)

RepetitionMeasure = Literal[
    "duplicate_line_share",
    "duplicate_line_character_share",
    "duplicate_paragraph_share",
    "duplicate_paragraph_character_share",
    "top_2_gram_character_share",
    "top_3_gram_character_share",
    "top_4_gram_character_share",
    "duplicate_5_gram_character_share",
    "duplicate_6_gram_character_share",
    "duplicate_7_gram_character_share",
    "duplicate_8_gram_character_share",
    "duplicate_9_gram_character_share",
    "duplicate_10_gram_character_share",
]


class NumberedWords:
    """The words of a text in their order, each a number: equal words have the same."""

    def __init__(self, words: Iterable[str]) -> None:
        import numpy as np  # slow, and the parameters are checked without it

        number_of: defaultdict[str, int] = defaultdict(count().__next__)
        self.numbers: Numbers = np.fromiter(map(number_of.__getitem__, words), dtype=np.int64)
        """Shape (words,)."""
        self.distinct = dict(number_of)
        """Each word with its number, which says how many others came before it first."""
        lengths = np.fromiter(map(len, self.distinct), dtype=np.int64, count=len(self.distinct))
        self.ends: Numbers = np.cumulative_sum(lengths[self.numbers], include_initial=True)
        """Characters of the first n words; shape (words + 1,)."""


def repetition(text: str, words: NumberedWords) -> dict[str, Feature]:
    """Each `RepetitionMeasure` of a text."""
    import numpy as np

    characters = max(len(text), 1)
    features: dict[str, Feature] = {}
    lines = list(filter(None, text.strip().split("\n"))) or [""]
    for name, parts in (("line", lines), ("paragraph", PARAGRAPH.split(text.strip()))):
        seen = set(parts)
        # Each part but its first occurrence.
        features[f"duplicate_{name}_share"] = (len(parts) - len(seen)) / len(parts)
        features[f"duplicate_{name}_character_share"] = (sum(map(len, parts)) - sum(map(len, seen))) / characters

    numbers = words.numbers
    starts = np.flatnonzero(np.bincount(numbers)[numbers] > 1)
    grams = numbers[starts]
    for size in range(2, DUPLICATE_SIZES[-1] + 1):
        if len(starts):  # in most texts nothing long is repeated
            # What is repeated begins and ends with something repeated that is one word shorter.
            is_repeated = np.zeros(len(numbers) + 1, dtype=bool)
            is_repeated[starts] = True
            goes_on = is_repeated[starts + 1]
            starts, grams = starts[goes_on], grams[goes_on]
            starts, grams = repeated(starts, grams * (len(numbers) + 1) + numbers[starts + size - 1])
        kind, found = ("top", top) if size in TOP_SIZES else ("duplicate", duplicates)
        features[f"{kind}_{size}_gram_character_share"] = found(starts, grams, words.ends, size) / characters
    return features


def repeated(starts: "Numbers", grams: "Numbers") -> tuple["Numbers", "Numbers"]:
    """Of n-grams, given by where they begin and numbers that are equal where they are: those that occur several times,
    in their order, with new numbers from 0 on."""
    import numpy as np

    order = np.argsort(grams)
    ordered = grams[order]
    is_as_before = np.zeros(len(order) + 1, dtype=bool)
    np.equal(ordered[1:], ordered[:-1], out=is_as_before[1:-1])
    is_repeated = is_as_before[:-1] | is_as_before[1:]
    numbers = np.full(len(order), -1)
    numbers[order[is_repeated]] = np.cumsum(~is_as_before[:-1][is_repeated]) - 1
    kept = np.flatnonzero(numbers >= 0)
    return starts[kept], numbers[kept]


def top(starts: "Numbers", grams: "Numbers", ends: "Numbers", size: int) -> int:
    """Characters of all occurrences of the n-gram that is repeated most often; of several the longest. 0: none is."""
    import numpy as np

    if not len(grams):
        return 0
    counts = np.bincount(grams)
    most = int(counts.max())
    longest = starts[counts[grams] == most]
    return most * int((ends[longest + size] - ends[longest]).max())


def duplicates(starts: "Numbers", grams: "Numbers", ends: "Numbers", size: int) -> int:
    """Characters of the n-grams that were there before; the search goes on behind each one that is found."""
    lengths = ends[starts + size] - ends[starts]
    seen: set[int] = set()
    found = free = 0
    for start, gram, length in zip(starts.tolist(), grams.tolist(), lengths.tolist(), strict=True):
        if start < free:
            continue
        if gram in seen:
            found += length
            free = start + size
        else:
            seen.add(gram)
    return found
