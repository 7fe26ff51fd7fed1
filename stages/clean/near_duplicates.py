"""Near-duplicates: MinHash signatures propose pairs, the exact Jaccard similarity of their words decides.

Clusters are the connected components of the pairs that passed, so they do not hang on the order of the documents or on
the number of workers. Signatures and words come from the cache: a new document costs its own shard.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from stages.clean.minhash import Hashes, ShardWords, read_words
from stages.clean.params import NearDuplicates

FOUND_AT_THRESHOLD = 0.999
"""A pair exactly as similar as the threshold becomes a candidate with at least this probability; others more often."""

Rows = npt.NDArray[np.int64]


class Components:
    """Connected components of rows (union-find); the smallest row stands for its component."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def find(self, row: int) -> int:
        """The row that stands for the component of `row`."""
        while self._parents[row] != row:
            self._parents[row] = self._parents[self._parents[row]]
            row = self._parents[row]
        return row

    def join(self, first: int, second: int) -> None:
        """Make two components one."""
        low, high = sorted((self.find(first), self.find(second)))
        self._parents[high] = low


def find_clusters(shards: Sequence[Path], ledger: pd.DataFrame, rows: Rows, params: NearDuplicates) -> pd.Series:
    """For each of the ledger's rows, the row that stands for its cluster.

    That is the first of the cluster by (source, path, id); a document without near-duplicates stands for itself.
    """
    ordered = ledger.loc[rows].sort_values(["source", "path", "id"]).index.to_numpy()
    corpus = Corpus(list(read_words(shards, params.permutations)), ordered)
    components = Components(len(ordered))
    for first, second in corpus.similar_pairs(params, components):
        components.join(first, second)
    return pd.Series([ordered[components.find(place)] for place in range(len(ordered))], index=ordered)


class Corpus:
    """Documents in a fixed order, with the words and signatures of their shards behind them."""

    def __init__(self, shards: list[ShardWords], rows: Rows) -> None:
        """`rows` are positions in the sequence of all shards' documents."""
        counts = [len(shard.signatures) for shard in shards]
        self.first_row = np.cumulative_sum(np.array(counts, dtype=np.int64), include_initial=True)
        self.shards = shards
        self.shard_of = np.searchsorted(self.first_row, rows, side="right") - 1
        self.row_in_shard = rows - self.first_row[self.shard_of]

    def words(self, place: int) -> Hashes:
        """The words of the document at a place of the order."""
        words: Hashes = self.shards[self.shard_of[place]].of(int(self.row_in_shard[place]))
        return words

    def sizes(self) -> Rows:
        """Distinct words of each document."""
        sizes = np.concatenate([np.diff(shard.offsets) for shard in self.shards])
        own: Rows = sizes[self.first_row[self.shard_of] + self.row_in_shard]
        return own

    def similar_pairs(self, params: NearDuplicates, components: Components) -> Iterator[tuple[int, int]]:
        """Pairs of places that are similar enough; pairs within one component are not looked at again."""
        large_enough = self.sizes() >= params.minimum_words
        for first, second in self.candidate_pairs(params, large_enough):
            if components.find(first) != components.find(second) and (
                are_similar(self.words(first), self.words(second), params.similarity)
            ):
                yield first, second

    def candidate_pairs(self, params: NearDuplicates, large_enough: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
        """Pairs whose signatures agree in a whole band (locality-sensitive hashing, Indyk and Motwani 1998)."""
        rows = rows_per_band(params.permutations, params.similarity)
        for start in range(0, params.permutations - rows + 1, rows):
            keys = self._band(start, start + rows)
            keys[~large_enough] = 0
            order = np.argsort(keys, kind="stable")
            ends = np.flatnonzero(np.diff(keys[order], append=np.uint64(0)) != 0) + 1
            begin = 0
            for end in ends.tolist():
                if end - begin > 1 and large_enough[order[begin]]:
                    yield from _pairs(order[begin:end].tolist())
                begin = end

    def _band(self, start: int, stop: int) -> npt.NDArray[np.uint64]:
        """One number per document that is equal where the signatures' columns start..stop are."""
        keys = np.empty(len(self.shard_of), dtype=np.uint64)
        for number, shard in enumerate(self.shards):
            places = np.flatnonzero(self.shard_of == number)
            keys[places] = _mixed(shard.signatures[:, start:stop])[self.row_in_shard[places]]
        return keys


def _pairs(places: list[int]) -> Iterator[tuple[int, int]]:
    for position, first in enumerate(places):
        for second in places[position + 1 :]:
            yield first, second


def _mixed(columns: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each row (FNV-1a over its numbers)."""
    keys = np.full(len(columns), 0xCBF29CE484222325, dtype=np.uint64)
    for column in np.asarray(columns).T:
        keys = (keys ^ column) * np.uint64(0x100000001B3)
    return keys


def are_similar(first: Hashes, second: Hashes, similarity: float) -> bool:
    """Whether common words over all words (Jaccard) of two documents reach the similarity."""
    # The smaller set over the larger is the most it can be: mostly that decides.
    if min(len(first), len(second)) / max(len(first), len(second)) < similarity:
        return False
    common = len(np.intersect1d(first, second, assume_unique=True))
    return common / (len(first) + len(second) - common) >= similarity


def rows_per_band(permutations: int, similarity: float) -> int:
    """The longest band with which a pair at the threshold is still found almost surely."""

    def probability(rows: int) -> float:
        return 1 - (1 - similarity**rows) ** (permutations // rows)

    return max((rows for rows in range(1, permutations + 1) if probability(rows) >= FOUND_AT_THRESHOLD), default=1)
