"""Which documents may be near-duplicates, by MinHash, and how similar documents are, exactly."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stages.clean.params import NearDuplicates
from stages.clean.words import ShardWords, WordHashes

FOUND_AT_THRESHOLD = 0.999
"""A pair exactly as similar as the threshold becomes a candidate with at least this probability; others more often."""

COMPARED_AT_ONCE = 1000
"""Documents whose words are in memory together."""

RowNumbers = npt.NDArray[np.int64]


class Corpus:
    """Documents in a fixed order, with the words and signatures of their shards."""

    def __init__(self, shards: list[ShardWords], rows: RowNumbers) -> None:
        """`rows` are positions in the sequence of all shards' documents."""
        counts = np.array([len(shard.signatures) for shard in shards], dtype=np.int64)
        self.first_row = np.cumulative_sum(counts, include_initial=True)
        self.shards = shards
        self.shard_of = np.searchsorted(self.first_row, rows, side="right") - 1
        self.row_in_shard = rows - self.first_row[self.shard_of]
        # The documents of shard n are by_shard[bounds[n]:bounds[n + 1]].
        self._by_shard = np.argsort(self.shard_of, kind="stable")
        self._bounds = np.searchsorted(self.shard_of[self._by_shard], np.arange(len(shards) + 1)).tolist()

    def words(self, document: int) -> WordHashes:
        """The hashes of the distinct words of one document, which is given by its index in the order."""
        words: WordHashes = self.shards[self.shard_of[document]].of(int(self.row_in_shard[document]))
        return words

    def sizes(self) -> RowNumbers:
        """Distinct words of each document."""
        sizes = np.concatenate([np.diff(shard.offsets) for shard in self.shards])
        own: RowNumbers = sizes[self.first_row[self.shard_of] + self.row_in_shard]
        return own

    def similarities(self, document: int, others: Sequence[int]) -> npt.NDArray[np.float64]:
        """The exact Jaccard similarity of the words of one document with those of each of others; all have words."""
        own = self.words(document)
        found = [np.empty(0)]
        for start in range(0, len(others), COMPARED_AT_ONCE):
            sets = [self.words(other) for other in others[start : start + COMPARED_AT_ONCE]]
            sizes = np.array([len(words) for words in sets])
            words = np.concatenate(sets)
            is_common = own[np.minimum(np.searchsorted(own, words), len(own) - 1)] == words
            common = np.add.reduceat(is_common.astype(np.int64), np.cumsum(sizes) - sizes)
            found.append(common / (len(own) + sizes - common))
        return np.concatenate(found)

    def buckets(self, params: NearDuplicates, among: RowNumbers | None = None) -> Iterator[RowNumbers]:
        """Groups of documents whose signatures agree in a whole band (locality-sensitive hashing, Indyk and Motwani
        1998). Two documents of a group are candidates for near-duplicates; the groups of different bands overlap.
        `among` are documents, in their order, to look at instead of all that have `minimum_words`.

        For example, six values in bands of three:

            document 0   7 1 4 | 2 9 5
            document 1   7 1 4 | 8 9 5      band 1 gives [0, 1], as both have 7 1 4
            document 2   3 1 4 | 8 9 5      band 2 gives [1, 2], as both have 8 9 5

        A column of two signatures is equal with a probability of their Jaccard similarity s, a band of r columns with
        s**r, and at least one of b bands with 1 - (1 - s**r)**b: rarely for unlike, almost always for alike documents.
        """
        documents = np.flatnonzero(self.sizes() >= params.minimum_words) if among is None else among
        rows = rows_per_band(params.permutations, params.similarity)
        for start in range(0, params.permutations - rows + 1, rows):
            keys = self._band(start, start + rows)[documents]
            order = np.argsort(keys, kind="stable")
            # Where the sorted keys change, one bucket ends and the next begins.
            bounds = np.concatenate([[0], np.flatnonzero(np.diff(keys[order])) + 1, [len(order)]])
            # Nearly all buckets are of one document.
            for bucket in np.flatnonzero(np.diff(bounds) > 1).tolist():
                yield documents[order[bounds[bucket] : bounds[bucket + 1]]]

    def _band(self, start: int, stop: int) -> npt.NDArray[np.uint64]:
        """One number per document that is equal where the signatures' columns start..stop are."""
        keys = np.empty(len(self.shard_of), dtype=np.uint64)
        for shard, (first, last) in zip(self.shards, pairwise(self._bounds), strict=True):
            own = self._by_shard[first:last]
            keys[own] = _mixed(shard.signatures[:, start:stop])[self.row_in_shard[own]]
        return keys


def _mixed(columns: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each row (FNV-1a over its numbers)."""
    keys = np.full(len(columns), 0xCBF29CE484222325, dtype=np.uint64)
    for column in np.asarray(columns).T:
        keys = (keys ^ column) * np.uint64(0x100000001B3)
    return keys


class WordSets:
    """Sets of words as rows of bits, so that one of them is compared with many at once."""

    def __init__(self, sets: Sequence[WordHashes]) -> None:
        self.sizes = np.array([len(words) for words in sets])
        # A word of one document alone is common to no pair.
        _, numbers, counts = np.unique(np.concatenate(sets), return_inverse=True, return_counts=True)
        is_shared = counts > 1
        columns = np.cumsum(is_shared) - 1
        self._bits = np.zeros((len(sets), int(is_shared.sum()) // 64 + 1), dtype=np.uint64)
        rows = np.repeat(np.arange(len(sets)), self.sizes)
        shared = is_shared[numbers]
        rows, columns = rows[shared], columns[numbers[shared]]
        np.bitwise_or.at(self._bits, (rows, columns // 64), np.uint64(1) << (columns % 64).astype(np.uint64))

    def similarities(self, document: int, others: RowNumbers) -> npt.NDArray[np.float64]:
        """Common words over all words (Jaccard) of one set with each of others."""
        common = np.bitwise_count(self._bits[others] & self._bits[document]).sum(axis=1, dtype=np.int64)
        similarities: npt.NDArray[np.float64] = common / (self.sizes[document] + self.sizes[others] - common)
        return similarities


def rows_per_band(permutations: int, similarity: float) -> int:
    """The longest band with which a pair at the threshold is still found almost surely."""

    def probability(rows: int) -> float:
        return 1 - (1 - similarity**rows) ** (permutations // rows)

    return max((rows for rows in range(1, permutations + 1) if probability(rows) >= FOUND_AT_THRESHOLD), default=1)
