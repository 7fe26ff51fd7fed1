"""Near-duplicates: a document is dropped if and only if it resembles one that is kept.

MinHash signatures propose pairs, the exact Jaccard similarity of their words decides, and whether they share passages:
unlike documents of a small vocabulary (records, sums, games) have the same words in another order. Documents are judged
in the order of (source, path, id). For example, if b resembles a, and c resembles b, but not a: a and c are kept, b is
dropped.

The result does not depend on the order of the shards or on the number of workers. Signatures and words come from the
cache: a new document costs its own shard.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from stages.clean.params import NearDuplicates
from stages.clean.words import (
    EMPTY_SLOT,
    PASSAGE_WORDS,
    PERMUTATIONS,
    WordHashes,
    cached_words,
    distinct_words,
    read_band,
    read_words,
)

FOUND_AT_THRESHOLD = 0.999
"""A pair exactly as similar as the threshold becomes a candidate with at least this probability; others more often."""

MAX_KEPT = 1000
"""Kept documents of a bucket that others are compared with. Boilerplate puts unlike documents into one bucket, and
comparing each with all of them would take time by the square of their number."""

MAX_DEMANDED = 0.3
"""The largest share of passages that near-duplicates need to have in common; unlike texts of 100 words have 0.0."""

BATCH_DOCUMENTS = 1000
"""Documents whose words are in memory together."""

RowNumbers = npt.NDArray[np.int64]


class Corpus:
    """Documents in a fixed order, each given by its index there, with the words and signatures of their shards."""

    def __init__(self, shards: list[Path], rows: RowNumbers) -> None:
        """`shards` are folders of `cached_words`, `rows` positions in the sequence of all shards' documents."""
        sizes = [distinct_words(shard) for shard in shards]
        first_row = np.cumulative_sum(np.array(list(map(len, sizes))), include_initial=True)
        self.shards = shards
        self.rows = rows
        self.shard_of = np.searchsorted(first_row, rows, side="right") - 1
        self.row_in_shard = rows - first_row[self.shard_of]
        self.sizes: RowNumbers = np.concatenate(sizes)[rows]
        """Distinct words of each document."""

    def words(self, document: int) -> WordHashes:
        """Hashes of the distinct words of one document."""
        return read_words(self.shards[self.shard_of[document]]).of(int(self.row_in_shard[document]))

    def similarities(self, document: int, others: Sequence[int]) -> npt.NDArray[np.float64]:
        """The exact Jaccard similarity of the words of one document with those of each of others; all have words."""
        own = self.words(document)
        found = [np.empty(0)]
        for start in range(0, len(others), BATCH_DOCUMENTS):
            sets = [self.words(other) for other in others[start : start + BATCH_DOCUMENTS]]
            sizes = np.array([len(words) for words in sets])
            words = np.concatenate(sets)
            is_common = own[np.minimum(np.searchsorted(own, words), len(own) - 1)] == words
            common = np.add.reduceat(is_common.astype(np.int64), np.cumsum(sizes) - sizes)
            found.append(common / (len(own) + sizes - common))
        return np.concatenate(found)

    def shared_passages(self, document: int, others: Sequence[int]) -> npt.NDArray[np.float64]:
        """The Jaccard similarity of the passages of one document and of each of others, as their signatures have it."""
        own = self._passages(document)
        found = np.array([self._passages(other) for other in others]).reshape(len(others), len(own))
        is_used = (own != EMPTY_SLOT) | (found != EMPTY_SLOT)
        shared: npt.NDArray[np.float64] = ((found == own) & is_used).sum(axis=1) / is_used.sum(axis=1)
        return shared

    def _passages(self, document: int) -> npt.NDArray[np.uint32]:
        shard = read_words(self.shards[self.shard_of[document]])
        found: npt.NDArray[np.uint32] = shard.passages[self.row_in_shard[document]]
        return found

    def buckets(self, params: NearDuplicates) -> Iterator[RowNumbers]:
        """Groups of documents whose signatures agree in a whole band (locality-sensitive hashing, Indyk and Motwani
        1998). Two documents of a group are candidates for near-duplicates; the groups of different bands overlap.

        For example, six values in bands of three:

            document 0   7 1 4 | 2 9 5
            document 1   7 1 4 | 8 9 5      band 1 gives [0, 1], as both have 7 1 4
            document 2   3 1 4 | 8 9 5      band 2 gives [1, 2], as both have 8 9 5

        A column of two signatures is equal with a probability of their Jaccard similarity s, a band of r columns with
        s**r, and at least one of b bands with 1 - (1 - s**r)**b: rarely for unlike, almost always for alike documents.
        """
        documents = np.flatnonzero(self.sizes >= params.minimum_words)
        rows = rows_per_band(params.similarity)
        for start in range(0, PERMUTATIONS - rows + 1, rows):
            keys = np.concatenate([_mixed(read_band(shard, start, rows)) for shard in self.shards])
            keys = keys[self.rows[documents]]
            order = np.argsort(keys, kind="stable")
            # Where the sorted keys change, one bucket ends and the next begins.
            bounds = np.concatenate([[0], np.flatnonzero(np.diff(keys[order])) + 1, [len(order)]])
            # Nearly all buckets hold a single document.
            for bucket in np.flatnonzero(np.diff(bounds) > 1).tolist():
                yield documents[order[bounds[bucket] : bounds[bucket + 1]]]


def _mixed(rows: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each column (FNV-1a over its numbers)."""
    keys = np.full(rows.shape[1], 0xCBF29CE484222325, dtype=np.uint64)
    for row in rows:
        keys = (keys ^ row) * np.uint64(0x100000001B3)
    return keys


def rows_per_band(similarity: float) -> int:
    """The longest band with which a pair at the threshold is still found almost surely."""

    def probability(rows: int) -> float:
        return 1 - (1 - similarity**rows) ** (PERMUTATIONS // rows)

    return max((rows for rows in range(1, PERMUTATIONS + 1) if probability(rows) >= FOUND_AT_THRESHOLD), default=1)


def shared_passages(similarity: float) -> float:
    """The least share of passages that near-duplicates have in common: half of what is left if words are exchanged at
    random places. For example, of texts with a similarity of 0.7 each word is in the other one with a probability of
    0.82, and each passage of five words with one of 0.38, so they share 0.38 / (2 - 0.38) = 0.23 of their passages."""
    kept = (2 * similarity / (1 + similarity)) ** PASSAGE_WORDS
    return min(MAX_DEMANDED, kept / (2 - kept) / 2)


def find_near_duplicates(
    shards: Sequence[Path], ledger: pd.DataFrame, rows: RowNumbers, params: NearDuplicates
) -> dict[int, tuple[int, float]]:
    """The near-duplicates to drop among the ledger's rows, by row: the kept document that each resembles most, and how
    much. Of those alike the first by (source, path, id) is kept."""
    ordered = ledger.loc[rows].sort_values(["source", "path", "id"]).index.to_numpy()
    corpus = Corpus(cached_words(shards), ordered)
    found = resembling_kept(corpus, params)
    return {int(ordered[document]): (int(ordered[kept]), similarity) for document, kept, similarity in found}


def resembling_kept(corpus: Corpus, params: NearDuplicates) -> Iterator[tuple[int, int, float]]:
    """Each document that resembles a kept one, the one that it resembles most, and how much, in their order."""
    buckets_of: dict[int, list[list[int]]] = defaultdict(list)
    for bucket in corpus.buckets(params):
        kept_in_bucket: list[int] = []
        for document in bucket.tolist():
            buckets_of[document].append(kept_in_bucket)
    crowded = 0
    for document in sorted(buckets_of):
        earlier = sorted({kept for kept_in_bucket in buckets_of[document] for kept in kept_in_bucket})
        similarities = corpus.similarities(document, earlier)
        alike = np.flatnonzero(similarities >= params.similarity)
        alike = alike[
            corpus.shared_passages(document, [earlier[one] for one in alike]) >= shared_passages(params.similarity)
        ]
        if len(alike):
            most = alike[similarities[alike].argmax()]
            yield document, earlier[most], float(similarities[most])
            continue
        for kept_in_bucket in buckets_of[document]:
            if len(kept_in_bucket) < MAX_KEPT:
                kept_in_bucket.append(document)
        crowded += all(len(kept_in_bucket) >= MAX_KEPT for kept_in_bucket in buckets_of[document])
    if crowded:
        print(
            f"WARNING: {crowded:,} documents share boilerplate with more than {MAX_KEPT:,} dissimilar ones, so "
            "some near-duplicates among them are missed; remove the boilerplate, or raise "
            "clean.near_duplicates.similarity",
            flush=True,
        )
