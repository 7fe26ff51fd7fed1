"""Input made to be slow: one huge cluster of near-duplicates, and texts on which regular expressions backtrack.

    python -m benchmarks.hostile [--quick]

The peer is the bound that each must keep: a quadratic step takes hours on the cluster, and minutes on a text. CPU time
of one process, so that other load on the machine does not count.
"""

import argparse
import contextlib
import os
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.measurements import Measurement, compare, interleave, record
from stages.clean.masking import mask
from stages.clean.near_duplicates import find_near_duplicates
from stages.clean.params import NearDuplicates
from stages.formats.documents import Document, document_id, write_shard

PARAMS = NearDuplicates(similarity=0.7, permutations=256, minimum_words=10, cluster="components")
MASKS = ("emails", "ip_addresses", "keys")
SHARED_WORDS = 100
SHARDS = 8

CLUSTER_SECONDS = 60.0
TEXT_SECONDS = 5.0

BEGINNINGS = ("-----BEGIN RSA PRIVATE " + "KEY-----\n", "eyJ", "//a/:_authToken= ", "sk-", "aws", "a@a.", "1.", "2001:")
"""Beginnings of what a pattern looks for, without its end."""


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    mask("", MASKS)  # imports what the patterns come from
    documents, size, runs = (2_000, 1_000_000, 1) if quick else (20_000, 10_000_000, 3)
    os.environ["PARROTFLOW_WORKERS"] = "1"
    slowest = max(BEGINNINGS, key=partial(mask_seconds, size=size // 10))
    sides = {"cluster": partial(cluster_seconds, documents), "text": partial(mask_seconds, slowest, size)}
    seconds = interleave(sides, runs)
    record(
        "hostile",
        [
            bounded(
                f"near-duplicates: one cluster of {documents:,} alike documents", seconds["cluster"], CLUSTER_SECONDS
            ),
            bounded(
                f"masks: a document of {size / 1e6:.0f} MB of `{slowest.strip()}`, the slowest of {len(BEGINNINGS)} "
                "kinds",
                seconds["text"],
                TEXT_SECONDS,
            ),
        ],
        quick=quick,
    )


def bounded(figure: str, seconds: list[float], bound: float) -> Measurement:
    """A time next to its bound."""
    return compare(
        figure,
        seconds,
        [bound],
        peer_name="the bound",
        unit="s",
        higher_is_better=False,
        libraries=["numpy", "rensa", "detect-secrets", "regex"],
    )


def cluster_seconds(count: int) -> float:
    """How long it takes to find that all of `count` documents are near-duplicates, nothing cached."""
    shared = " ".join(f"word{number}" for number in range(SHARED_WORDS))
    texts = [f"{shared} own{number}" for number in range(count)]
    documents = [
        Document(document_id(text), "s", "1", f"{number:06d}.py", "MIT", text) for number, text in enumerate(texts)
    ]
    ledger = pd.DataFrame([{"id": one.id, "source": one.source, "path": one.path} for one in documents])
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        shards = [Path(f"b{number}.parquet") for number in range(SHARDS)]
        for shard, rows in zip(shards, np.array_split(np.arange(count), SHARDS), strict=True):
            write_shard(shard, [documents[row] for row in rows])
        start = time.process_time()
        found = find_near_duplicates(shards, ledger, np.arange(count), PARAMS, "unicode")
        seconds = time.process_time() - start
    if len(found) != count - 1 or set(found["kept"]) != {0}:
        raise SystemExit(f"{len(found)} near-duplicates of {found['kept'].nunique()} documents instead of one cluster")
    return seconds


def mask_seconds(unit: str, size: int) -> float:
    """How long it takes to mask a text of `size` characters that repeats `unit`."""
    text = (unit * (size // len(unit) + 1))[:size]
    start = time.process_time()
    mask(text, MASKS)
    return time.process_time() - start


if __name__ == "__main__":
    main()
