"""What the corpus is and what was left out of it."""

import csv
import hashlib
import io
from pathlib import Path
from typing import Any

from stages.collect.gather import Taken
from stages.collect.sources.files import NO_TEXT
from stages.formats.documents import read_shard, shard_paths

LEFT_OUT = Path("data/left_out.csv")

LARGEST_SOURCES = 50
"""The most sources that are listed with their bytes; `data/corpus.html` sums up the others."""


def corpus_id(folder: Path) -> str:
    """One hash for a corpus: over (id, source, revision, path) of its documents in the order of the shards."""
    digest = hashlib.sha256()
    for shard in shard_paths(folder):
        table = read_shard(shard, columns=["id", "source", "revision", "path"])
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
            digest.update(("\t".join(row) + "\n").encode("utf-8"))
    return digest.hexdigest()


def summary(taken: Taken, identity: str) -> dict[str, Any]:
    """The metrics of `reports/collect.json`."""
    largest = sorted(taken.bytes.items(), key=lambda item: (-item[1], item[0]))[:LARGEST_SOURCES]
    return {
        "corpus_id": identity,
        "documents": taken.documents.total(),
        "bytes": taken.total_bytes,
        "sources": len(taken.documents),
        "left_out": dict(taken.reasons),
        "bytes_per_source": dict(largest),
    }


def misplaced(taken: Taken) -> list[str]:
    """A line for each kind of file that another kind of source would have read."""
    counts = ((taken.reasons[reason], reason) for reason in NO_TEXT)
    return [f"left out {count:,}: {reason}" for count, reason in counts if count]


def reasons(taken: Taken) -> str:
    """Why nothing is left, in words."""
    if not taken.reasons:
        return "the sources hold no text"
    counts = ", ".join(f"{reason}: {count}" for reason, count in taken.reasons.most_common())
    return f"all {taken.reasons.total()} texts were left out ({counts})"


def left_out_table(taken: Taken) -> str:
    """What was left out, by source and path, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["source", "path", "reason"])
    writer.writerows(sorted((item.source, item.path, item.reason) for item in taken.left_out))
    return text.getvalue()
