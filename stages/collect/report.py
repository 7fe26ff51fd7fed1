"""What the corpus is and what was left out of it."""

import csv
import hashlib
import io
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.collect.source_kinds import Item, source_kinds
from stages.collect.trie import AnyDocument
from stages.formats.documents import read_shard, shard_paths

LEFT_OUT = Path("data/left_out.csv")

LARGEST_SOURCES = 50
"""The most sources that are listed with their bytes; `data/corpus.html` sums up the others."""

NAMED_AT_MOST = 100_000
"""The most left out texts that are named in the report; the others are counted."""


@dataclass(slots=True)
class Taken:
    """What the corpus takes and what it leaves out, counted while the documents pass."""

    documents: Counter[str] = field(default_factory=Counter)
    """Source -> documents."""
    bytes: Counter[str] = field(default_factory=Counter)
    """Source -> bytes of text."""
    total_bytes: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Reason -> texts left out."""
    left_out: list[tuple[str, str, str]] = field(default_factory=list)
    """Source, path and reason of the first of them."""

    def take(self, document: AnyDocument) -> None:
        """Count a document that becomes part of the corpus."""
        self.documents[document.source] += 1
        self.bytes[document.source] += document.size
        self.total_bytes += document.size

    def leave_out(self, item: Item | AnyDocument, reason: str) -> None:
        """Count a text that does not, and name it while there is room."""
        self.reasons[reason] += 1
        if len(self.left_out) < NAMED_AT_MOST:
            self.left_out.append((item.source, item.path, reason))


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
    """A line for each notable reason, such as a kind of file that another kind of source would have read."""
    notable = (reason for kind in source_kinds() for reason in kind.notable)
    return [f"left out {count:,}: {reason}" for reason in notable if (count := taken.reasons[reason])]


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
    writer.writerows(sorted(taken.left_out))
    return text.getvalue()
