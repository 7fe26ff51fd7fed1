"""Near-duplicates, compared with datasketch with the same permutations and threshold, both with an exact Jaccard check.

    python -m benchmarks.dedup [--quick]

The peers are CodeParrot's way with datasketch (a regular expression cuts the words, each of them updates the signature)
and the same with datasketch's batched update over words cut as ours: an LSH index, the exact similarity of each
candidate. Recall counts the pairs that comparing all documents finds; every pair that a side reports is verified.
"""

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.corpora.python_source import python_documents
from benchmarks.measurements import Measurement, compare, interleave, record
from stages.clean.near_duplicates import Corpus, RowNumbers, WordSets
from stages.clean.params import NearDuplicates
from stages.clean.words import read_words, word_list
from stages.formats.documents import Document, write_shard

PARAMS = NearDuplicates(similarity=0.85, permutations=256, minimum_words=10, cluster="components")

PER_WORD = f"CodeParrot's path, datasketch {version('datasketch')}"
BATCHED = f"datasketch {version('datasketch')}, batched, our words"

NOT_WORD = re.compile("[^A-Za-z_0-9]")

Pairs = set[tuple[int, int]]


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    by_id = {document.id: document for document in python_documents(8_000_000 if quick else 40_000_000)}
    documents = list(by_id.values())
    pairs: dict[str, Pairs] = {}

    def side(name: str, find: Callable[[list[Document]], tuple[float, Pairs]]) -> Callable[[], float]:
        def measure() -> float:
            seconds, pairs[name] = find(documents)
            return seconds

        return measure

    sides = {
        "ours": side("ours", our_pairs),
        PER_WORD: side(PER_WORD, partial(datasketch_pairs, cut=codeparrot_words, batched=False)),
        BATCHED: side(BATCHED, partial(datasketch_pairs, cut=our_words, batched=True)),
    }
    seconds = interleave(sides, 1 if quick else 3)
    true = all_pairs(documents)
    figures = [speed(len(documents), seconds, peer) for peer in (PER_WORD, BATCHED)]
    record("dedup", [*figures, *(recall(true, pairs, peer) for peer in (PER_WORD, BATCHED))], quick=quick)


def speed(count: int, seconds: dict[str, list[float]], peer: str) -> Measurement:
    """How long each side takes."""
    return compare(
        f"verified near-duplicate pairs of {count:,} documents, 256 permutations, similarity 0.85, one process",
        seconds["ours"],
        seconds[peer],
        peer_name=peer,
        unit="s",
        higher_is_better=False,
        libraries=["rensa", "datasketch", "numpy"],
    )


def recall(true: Pairs, pairs: dict[str, Pairs], peer: str) -> Measurement:
    """The share of all true pairs that each side finds."""
    for name, found in pairs.items():
        if not found <= true:
            raise SystemExit(f"{name} reports pairs that are not similar: {sorted(found - true)[:3]}")
    return compare(
        f"recall of the {len(true):,} pairs that comparing all documents finds",
        [len(pairs["ours"]) / len(true)],
        [len(pairs[peer]) / len(true)],
        peer_name=peer,
        unit="share",
        higher_is_better=True,
        libraries=["rensa", "datasketch"],
    )


def our_pairs(documents: list[Document]) -> tuple[float, Pairs]:
    """The stage's path over one shard, without its cache."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        shard = Path("b.parquet")
        write_shard(shard, documents)
        start = time.perf_counter()
        corpus = Corpus(list(read_words([shard], PARAMS.permutations, "ascii")), np.arange(len(documents)))
        found = {pair for bucket in corpus.buckets(PARAMS) for pair in similar_pairs(corpus, bucket)}
        seconds = time.perf_counter() - start
        os.chdir(here)
    return seconds, found


def similar_pairs(corpus: Corpus, bucket: RowNumbers) -> Pairs:
    """All similar pairs of a bucket; the stage only needs as many as join its clusters."""
    words = WordSets([corpus.words(document) for document in bucket.tolist()])
    found: Pairs = set()
    for document in range(len(bucket) - 1):
        others = np.arange(document + 1, len(bucket))
        similar = others[words.similarities(document, others) >= PARAMS.similarity]
        found |= {(min(pair), max(pair)) for pair in ((int(bucket[document]), int(k)) for k in bucket[similar])}
    return found


def datasketch_pairs(documents: list[Document], cut: Callable[[str], set[bytes]], batched: bool) -> tuple[float, Pairs]:
    """MinHash and LSH by datasketch: CodeParrot's way with an update per word, or with its batched update."""
    from datasketch import MinHash, MinHashLSH

    start = time.perf_counter()
    index = MinHashLSH(threshold=PARAMS.similarity, num_perm=PARAMS.permutations)
    words = [cut(document.text) for document in documents]
    found: Pairs = set()
    for number, own in enumerate(words):
        if len(own) < PARAMS.minimum_words:
            continue
        signature = MinHash(num_perm=PARAMS.permutations)
        if batched:
            signature.update_batch(list(own))
        else:
            for word in own:
                signature.update(word)
        for other in index.query(signature):
            if similar(words[other], own):
                found.add((other, number))
        index.insert(number, signature)
    return time.perf_counter() - start, found


def our_words(text: str) -> set[bytes]:
    """Words as the stage cuts them with `words: ascii`."""
    return set(word_list(text, "ascii"))


def codeparrot_words(text: str) -> set[bytes]:
    """Words as CodeParrot cuts them, by a regular expression."""
    return {word.encode() for word in NOT_WORD.split(text) if word.strip()}


def similar(first: set[bytes], second: set[bytes]) -> bool:
    """Whether two documents are near-duplicates, exactly."""
    return len(first & second) / len(first | second) >= PARAMS.similarity


def all_pairs(documents: list[Document]) -> Pairs:
    """Every similar pair. Sets whose sizes differ too much cannot be similar, which spares most comparisons."""
    words = [our_words(document.text) for document in documents]
    order = sorted((n for n in range(len(words)) if len(words[n]) >= PARAMS.minimum_words), key=lambda n: len(words[n]))
    found: Pairs = set()
    for rank, first in enumerate(order):
        largest = len(words[first]) / PARAMS.similarity
        for second in order[rank + 1 :]:
            if len(words[second]) > largest:
                break
            if similar(words[first], words[second]):
                found.add((min(first, second), max(first, second)))
    return found


if __name__ == "__main__":
    main()
