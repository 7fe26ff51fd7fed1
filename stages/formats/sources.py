"""How much text comes from which source and under which license, for cards and for the record of a revision."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel

from stages.formats.tokens import TokenStore

MAX_SHOWN_ROWS = 50
"""The most rows of a table; one more sums up the rest."""

NO_LICENSE = "none stated"


class Amount(BaseModel):
    """An amount of text."""

    documents: int = 0
    bytes: int = 0
    """UTF-8 bytes, as they were tokenized."""


class Source(BaseModel, frozen=True):
    """A source of documents, and how much of it was tokenized."""

    name: str
    revision: str
    """A version, a commit, or the user's own text."""
    documents: int
    bytes: int
    ids: str
    """The sum, modulo 2**256, of the sha256 of the documents' ids: the same in any order."""
    licenses: dict[str, Amount]
    """SPDX expression, or empty if none is known -> amount."""


@dataclass(frozen=True)
class SplitSize:
    """What one split of the corpus holds."""

    tokens: int
    sources: list[Source]

    @property
    def total(self) -> Amount:
        """All of its text."""
        return sum_of(self.sources)

    @property
    def documents_of_source(self) -> Counter[str]:
        """Source -> documents of all its revisions."""
        counts: Counter[str] = Counter()
        for source in self.sources:
            counts[source.name] += source.documents
        return counts


def read_split(folder: Path) -> SplitSize:
    """Count the documents of a token store."""
    return SplitSize(TokenStore(folder).manifest.tokens, read_sources(folder))


def read_sources(*stores: Path) -> list[Source]:
    """What the token stores hold together, by source and revision."""
    found: dict[tuple[str, str], dict[str, Amount]] = defaultdict(lambda: defaultdict(Amount))
    ids: Counter[tuple[str, str]] = Counter()
    for store in stores:
        for info in TokenStore(store).document_infos():
            key = (info["source"], info["revision"])
            amount = found[key][info["license"]]
            amount.documents += 1
            amount.bytes += info["bytes"]
            ids[key] += int(sha256(info["id"].encode()).hexdigest(), 16)
    return [
        Source(
            name=key[0],
            revision=key[1],
            **dict(sum_of(licenses.values())),
            ids=f"{ids[key] % 2**256:064x}",
            licenses=dict(sorted(licenses.items())),
        )
        for key, licenses in sorted(found.items())
    ]


def sum_of(amounts: Iterable[Amount | Source]) -> Amount:
    """All of the text together."""
    amounts = list(amounts)
    return Amount(documents=sum(one.documents for one in amounts), bytes=sum(one.bytes for one in amounts))


def by_license(split: SplitSize) -> list[tuple[str, ...]]:
    """Rows of license, documents and bytes."""
    licenses = [(name, amount) for source in split.sources for name, amount in source.licenses.items()]
    names = dict.fromkeys(name for name, _ in licenses)
    of = [(name or NO_LICENSE, sum_of(amount for other, amount in licenses if other == name), "") for name in names]
    return [row[:3] for row in _largest(of)]


def by_source(split: SplitSize) -> list[tuple[str, ...]]:
    """Rows of source with its revision, documents, bytes and licenses."""
    return _largest(
        (f"{one.name} {one.revision}".strip(), one, ", ".join(sorted(name or NO_LICENSE for name in one.licenses)))
        for one in split.sources
    )


def _largest(named: Iterable[tuple[str, Amount | Source, str]]) -> list[tuple[str, ...]]:
    """Name, documents, bytes and remark, the largest first; the last row sums up what is not among the first rows."""
    ordered = sorted(named, key=lambda row: (-row[1].bytes, row[0]))
    rows = ordered[:MAX_SHOWN_ROWS]
    if rest := ordered[MAX_SHOWN_ROWS:]:
        rows.append((f"{len(rest):,} more", sum_of(amount for _, amount, _ in rest), ""))
    return [(name, f"{amount.documents:,}", f"{amount.bytes:,}", remark) for name, amount, remark in rows]
