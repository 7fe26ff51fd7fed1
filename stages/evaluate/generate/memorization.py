"""Memorization: the longest passage of each text that occurs verbatim in the training data.

The workers of `map_shards` import this module, so it imports little.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stages.formats.tokens import STORE_MANIFEST, TokenStore
from stages.runtime.atomic import FileState, file_state
from stages.runtime.workers import counted, map_shards

TokenCounts = npt.NDArray[np.int64]

BATCH_TOKENS = 2**22
"""Tokens in a part of the store, which a worker holds in memory: at most 32 bytes per token."""


def longest_shared(store: TokenStore, texts: Sequence[Sequence[int]]) -> list[int]:
    """The length in tokens of each text's longest passage that occurs verbatim in the store; 0 if none does.

    The result is exact, without hashing: n-grams get numbers (Karp, Miller and Rosenberg 1972). The first pass finds
    the positions of the texts' 1-grams in the store, the next one those among them that continue as a text's 2-gram,
    and so on. With the texts `a b c` and `b d` and the store `x a b d`:

        n = 1   a=0 b=1 c=2 d=3    store: a at 1, b at 2, d at 3
        n = 2   ab=0 bc=1 bd=2     store: ab at 1, bd at 2
        n = 3   abc=0              store: nothing is left; the longest are ab (2) and bd (2)

    Each pass reads only the positions that the previous one left, which are soon few.
    """
    ids = np.array([token for text in texts for token in text], dtype=np.int64)
    text_of = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    most, tokens = max(map(len, texts), default=0), store.manifest.tokens
    # Parts overlap, because a passage may end in the next part.
    parts = [
        (start, min(start + BATCH_TOKENS + most - 1, tokens)) for start in range(0, tokens if most else 0, BATCH_TOKENS)
    ]
    opened = store.folder.absolute(), file_state((store.folder / STORE_MANIFEST).stat())
    results = map_shards(partial(_longest_within, opened, len(texts), ids, text_of), parts)
    longest = np.zeros(len(texts), dtype=np.int64)
    for part in counted(results, "passages of the training data", "parts", len(parts)):
        np.maximum(longest, part, out=longest)
    lengths: list[int] = longest.tolist()
    return lengths


@lru_cache(1)
def _opened(folder: Path, _: FileState) -> TokenStore:
    return TokenStore(folder)


def _longest_within(
    store: tuple[Path, FileState], texts: int, ids: TokenCounts, text_of: TokenCounts, part: tuple[int, int]
) -> TokenCounts:
    """As `longest_shared`, for a part of the store, which is given by its folder and its manifest's state."""
    longest = np.zeros(texts, dtype=np.int64)
    opened = _opened(*store)
    _scan(opened.read(*part).astype(np.int64), ids, text_of, opened.manifest.vocab_size, longest)
    return longest


def _scan(stored: TokenCounts, ids: TokenCounts, text_of: TokenCounts, vocabulary: int, longest: TokenCounts) -> None:
    """Raise `longest` of each text to its longest passage in these tokens of the store."""
    texts_at, stored_at = np.arange(len(ids)), np.arange(len(stored))  # the starts of shared n-grams
    texts_names, stored_names = np.zeros_like(texts_at), np.zeros_like(stored_at)  # the numbers of these n-grams
    n = 0
    while len(stored_at):
        inside = stored_at + n < len(stored)
        stored_at, stored_names = stored_at[inside], stored_names[inside]
        inside = text_of[np.minimum(texts_at + n, len(ids) - 1)] == text_of[texts_at]
        inside &= texts_at + n < len(ids)
        texts_at, texts_names = texts_at[inside], texts_names[inside]
        if not len(texts_at):
            return
        # The key of an n-gram consists of the number of its first n - 1 tokens and its last token.
        keys, texts_names = np.unique(texts_names * vocabulary + ids[texts_at + n], return_inverse=True)
        wanted = stored_names * vocabulary + stored[stored_at + n]
        stored_names = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        matches = keys[stored_names] == wanted
        stored_at, stored_names = stored_at[matches], stored_names[matches]
        shared = np.zeros(len(keys), dtype=bool)
        shared[stored_names] = True
        texts_at, texts_names = texts_at[shared[texts_names]], texts_names[shared[texts_names]]
        n += 1
        owners = text_of[texts_at]
        longest[owners] = np.maximum(longest[owners], n)
