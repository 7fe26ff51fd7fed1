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
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd

from stages.clean.near_duplicates.candidates import Corpus, RowNumbers, WordSets
from stages.clean.params import NearDuplicates
from stages.clean.words import WordKind, read_words


@dataclass(frozen=True, slots=True)
class NearDuplicate:
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
    """The near-duplicates to drop among the ledger's rows: an index of rows, and the columns of `NearDuplicate`, in
    which documents are rows too.

    The first document by (source, path, id) is kept.
    """
    ordered = ledger.loc[rows].sort_values(["source", "path", "id"]).index.to_numpy()
    corpus = Corpus(list(read_words(shards, params.permutations, words)), ordered)
    clusters, pairs = similar_documents(corpus, params)
    dropped = (
        star(corpus, params, clusters) if params.cluster == "star" else components(corpus, params, clusters, pairs)
    )
    found = pd.DataFrame(map(astuple, dropped), columns=[field.name for field in fields(NearDuplicate)])
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

    Every pair is compared unless both are in one cluster already. The first document is compared with all others. If
    they are alike, that joins them, and nothing is left to do: a bucket of n alike documents costs n comparisons
    instead of n * n / 2. Otherwise only a document outside the largest cluster can be part of an open pair, so each of
    those is compared with all that are in other clusters.
    """
    labels = np.array([clusters.root(document) for document in bucket.tolist()])
    if (labels == labels[0]).all():
        return
    words = WordSets([corpus.words(document) for document in bucket.tolist()])
    is_open = np.ones(len(bucket), dtype=bool)

    def compare(document: int) -> Iterator[Pair]:
        others = np.flatnonzero(is_open & (labels != labels[document]))
        similarities = words.similarities(document, others)
        # Of each cluster the most similar document first: that pair joins it.
        order = np.argsort(-similarities, kind="stable")
        similar = order[: (similarities >= params.similarity).sum()]
        for other, similarity in zip(bucket[others[similar]].tolist(), similarities[similar].tolist(), strict=True):
            if clusters.merge(int(bucket[document]), other):
                yield int(bucket[document]), other, similarity
        labels[np.isin(labels, labels[others[similar]])] = labels[document]

    yield from compare(0)
    found, counts = np.unique(labels, return_counts=True)
    for document in np.flatnonzero(labels != found[counts.argmax()]).tolist():
        yield from compare(document)
        is_open[document] = False


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
