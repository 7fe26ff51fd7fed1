"""Near-duplicates: MinHash signatures propose pairs, the exact Jaccard similarity of their words decides.

Which documents are dropped is a choice, `clean.near_duplicates.cluster`. For example, of three documents a, b and c,
where a resembles b, b resembles c, and a and c are further apart than the threshold:

    components   a is kept, b and c are dropped: c resembles no document that is kept, it is linked to a through b
    star         a and c are kept, b is dropped: what is dropped resembles a document that is kept

Neither depends on the order of the shards or on the number of workers. Signatures and words come from the cache: a new
document costs its own shard.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from stages.clean.params import NearDuplicates
from stages.clean.words import ShardWords, WordHashes, WordKind, read_words

FOUND_AT_THRESHOLD = 0.999
"""A pair exactly as similar as the threshold becomes a candidate with at least this probability; others more often."""

FEW = 8
"""Documents of a bucket that are compared one by one: for more it is faster to make rows of bits of their words."""

COMPARED_AT_ONCE = 1000
"""Documents whose words are in memory together."""

RowNumbers = npt.NDArray[np.int64]


class NearDuplicate(NamedTuple):
    """A document that is dropped. Documents are given by their index in an order; similarities are exact (Jaccard)."""

    document: int
    resembled: int
    """A document that it is as similar to as the threshold asks, or more: the kept one where that is so, else the next
    one on a shortest way of such pairs to the kept one."""
    similarity: float
    """With `resembled`."""
    kept: int
    kept_similarity: float
    """With `kept`; with `cluster: components` it may be below the threshold."""


Pair = tuple[int, int, float]
"""Two documents and their similarity."""


class Corpus:
    """Documents in a fixed order, each given by its index there, with the words and signatures of their shards."""

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
        """Hashes of the distinct words of one document."""
        shard: ShardWords = self.shards[self.shard_of[document]]
        return shard.of(int(self.row_in_shard[document]))

    def sizes(self) -> RowNumbers:
        """Distinct words of each document."""
        sizes: RowNumbers = np.concatenate([np.diff(shard.offsets) for shard in self.shards])
        return sizes[self.first_row[self.shard_of] + self.row_in_shard]

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


class DisjointSets:
    """Clusters of documents (Tarjan 1975). That of scipy takes a fifth of the time in which the stage starts."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def root(self, document: int) -> int:
        """The document that names the cluster of another one, which is a cluster of its own until it is merged."""
        root = document
        while (parent := self._parents.setdefault(root, root)) != root:
            root = parent
        while document != root:
            self._parents[document], document = root, self._parents[document]
        return root

    def merge(self, first: int, second: int) -> bool:
        """Make the clusters of two documents one; False where they are."""
        one, other = self.root(first), self.root(second)
        self._parents[other] = one
        return one != other

    def clusters(self) -> list[list[int]]:
        """Those of several documents, each in order."""
        found: dict[int, list[int]] = defaultdict(list)
        for document in sorted(self._parents):
            found[self.root(document)].append(document)
        return [cluster for cluster in found.values() if len(cluster) > 1]


def find_near_duplicates(
    shards: Sequence[Path], ledger: pd.DataFrame, rows: RowNumbers, params: NearDuplicates, words: WordKind
) -> pd.DataFrame:
    """The near-duplicates to drop among the ledger's rows: the columns of `NearDuplicate`, with rows for documents, by
    the row. Of those alike the first by (source, path, id) is kept."""
    ordered = ledger.loc[rows].sort_values(["source", "path", "id"]).index.to_numpy()
    corpus = Corpus(list(read_words(shards, params.permutations, words)), ordered)
    clusters, pairs = similar_documents(corpus, params)
    dropped = (
        star(corpus, params, clusters) if params.cluster == "star" else components(corpus, params, clusters, pairs)
    )
    found = pd.DataFrame(list(dropped), columns=NearDuplicate._fields)
    for column in ("document", "resembled", "kept"):
        found[column] = ordered[found[column].to_numpy(dtype=np.int64)]
    return found.set_index("document")


def similar_documents(corpus: Corpus, params: NearDuplicates) -> tuple[list[list[int]], list[Pair]]:
    """The connected components of the pairs that are similar enough, each in order, without single documents; and of
    these pairs as many as connect them."""
    clusters = DisjointSets()
    pairs = [pair for bucket in corpus.buckets(params) for pair in join_similar(corpus, bucket, params, clusters)]
    return clusters.clusters(), pairs


def join_similar(corpus: Corpus, bucket: RowNumbers, params: NearDuplicates, clusters: DisjointSets) -> Iterator[Pair]:
    """Join the clusters of those documents of a bucket that are similar enough. Gives a pair for each joint.

    Every pair is compared unless both are in one cluster already. The first document is compared with all others: a
    bucket of n alike documents costs n comparisons instead of n * n / 2. After that only a document outside the largest
    cluster can be part of an open pair, so each of those is compared with all that are in other clusters.
    """
    documents = bucket.tolist()
    labels = np.array(list(map(clusters.root, documents)))
    if (labels == labels[0]).all():
        return
    words = WordSets(list(map(corpus.words, documents))) if len(documents) > FEW else None
    is_open = np.ones(len(documents), dtype=bool)

    def compare(document: int) -> Iterator[Pair]:
        is_open[document] = False
        others = np.flatnonzero(is_open & (labels != labels[document]))
        similarities = (
            words.similarities(document, others)
            if words
            else corpus.similarities(documents[document], bucket[others].tolist())
        )
        if not (count := np.count_nonzero(similarities >= params.similarity)):
            return
        # Of each cluster the most similar document first: that pair joins it.
        similar = np.argsort(-similarities, kind="stable")[:count]
        for other, similarity in zip(bucket[others[similar]].tolist(), similarities[similar].tolist(), strict=True):
            if clusters.merge(documents[document], other):
                yield documents[document], other, similarity
        labels[np.isin(labels, labels[others[similar]])] = labels[document]

    yield from compare(0)
    found, counts = np.unique(labels, return_counts=True)
    for document in np.flatnonzero(is_open & (labels != found[counts.argmax()])).tolist():
        yield from compare(document)


def components(
    corpus: Corpus, params: NearDuplicates, clusters: Sequence[Sequence[int]], pairs: Sequence[Pair]
) -> Iterator[NearDuplicate]:
    """All documents of a cluster but its first, also those that are linked to it only through others."""
    linked: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for first, second, similarity in pairs:
        linked[first].append((second, similarity))
        linked[second].append((first, similarity))
    for kept, *dropped in clusters:
        to_kept = dict(zip(dropped, corpus.similarities(kept, dropped).tolist(), strict=True))
        ways = {one: (kept, similarity) for one, similarity in to_kept.items() if similarity >= params.similarity}
        reached = deque([kept, *ways])
        while reached:
            here = reached.popleft()
            for other, similarity in linked[here]:
                if other != kept and other not in ways:
                    ways[other] = (here, similarity)
                    reached.append(other)
        for document in dropped:
            yield NearDuplicate(document, *ways[document], kept, to_kept[document])


def star(corpus: Corpus, params: NearDuplicates, clusters: Sequence[Sequence[int]]) -> Iterator[NearDuplicate]:
    """The documents that resemble one that is kept, in their order: a document is kept unless an earlier kept one
    resembles it. Of several such the most similar one is named."""
    members = np.array(sorted(document for cluster in clusters for document in cluster), dtype=np.int64)
    buckets_of: dict[int, list[list[int]]] = defaultdict(list)
    for bucket in corpus.buckets(params, members):
        kept_in_bucket: list[int] = []
        for document in bucket.tolist():
            buckets_of[document].append(kept_in_bucket)
    for document in members.tolist():
        earlier = sorted({kept for kept_in_bucket in buckets_of[document] for kept in kept_in_bucket})
        similarities = corpus.similarities(document, earlier)
        if earlier and similarities.max() >= params.similarity:
            kept, similarity = earlier[similarities.argmax()], float(similarities.max())
            yield NearDuplicate(document, kept, similarity, kept, similarity)
        else:
            for kept_in_bucket in buckets_of[document]:
                kept_in_bucket.append(document)
