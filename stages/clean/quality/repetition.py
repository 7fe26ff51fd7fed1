"""How much of a text is repeated: lines, paragraphs and n-grams of words (Gopher: Rae et al. 2021, table A1).

    top_2_gram_character_share        of the n-gram that is repeated most often, all its occurrences; n = 2, 3, 4
    duplicate_5_gram_character_share  of n-grams that were there before, overlaps counted once; n = 5 ... 10

Characters of n-grams are those of their words. Words are numbered once, and n-grams compared as numbers: only where
some are equal is one looked at in order.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from stages.clean.filtering import Feature

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

PARAGRAPH = re.compile(r"\n{2,}")
LINE = re.compile(r"\n+")

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


def repetition(text: str, words: Sequence[str]) -> dict[str, Feature]:
    """Each `RepetitionMeasure` of a text, whose words are given in their order."""
    import numpy as np  # slow, and the parameters are checked without it

    characters = max(len(text), 1)
    features: dict[str, Feature] = {}
    for name, parts in (("line", LINE.split(text.strip())), ("paragraph", PARAGRAPH.split(text.strip()))):
        seen = set(parts)
        # Each part but its first occurrence.
        features[f"duplicate_{name}_share"] = (len(parts) - len(seen)) / len(parts)
        features[f"duplicate_{name}_character_share"] = (sum(map(len, parts)) - sum(map(len, seen))) / characters

    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int64)
    ends = np.cumsum([0, *map(len, words)])
    grams, size = ids, 1
    for wanted in (*TOP_SIZES, *DUPLICATE_SIZES):
        while size < wanted and len(grams) > 1:
            grams, size = longer(grams, ids[size:]), size + 1
        is_there = size == wanted and len(grams) > 0
        found = (top if wanted in TOP_SIZES else duplicates)(grams, ends, size) if is_there else 0
        kind = "top" if wanted in TOP_SIZES else "duplicate"
        features[f"{kind}_{wanted}_gram_character_share"] = found / characters
    return features


def longer(grams: "Numbers", following: "Numbers") -> "Numbers":
    """Numbers for the n-grams that are one word longer: equal where the n-gram and the word after it are."""
    import numpy as np

    pairs = grams[: len(following)] * (int(following.max()) + 1) + following
    return np.asarray(np.unique(pairs, return_inverse=True)[1], dtype=np.int64)


def top(grams: "Numbers", ends: "Numbers", size: int) -> int:
    """Characters of all occurrences of the n-gram that is repeated most often; of several the longest. 0: none is."""
    import numpy as np

    counts = np.bincount(grams)
    most = int(counts.max())
    if most < 2:
        return 0
    lengths = ends[size:] - ends[:-size]
    return most * int(lengths[counts[grams] == most].max())


def duplicates(grams: "Numbers", ends: "Numbers", size: int) -> int:
    """Characters of the n-grams that were there before; the search goes on behind each one that is found."""
    import numpy as np

    repeated = np.flatnonzero(np.bincount(grams)[grams] > 1)
    seen: set[int] = set()
    found = free = 0
    for start, gram in zip(repeated.tolist(), grams[repeated].tolist(), strict=True):
        if start < free:
            continue
        if gram in seen:
            found += int(ends[start + size] - ends[start])
            free = start + size
        else:
            seen.add(gram)
    return found
