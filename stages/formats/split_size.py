"""How much text a split holds, by source and by licence, as the cards of the model and of the data show it."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from stages.formats.tokens import TokenStore

ROWS_SHOWN = 50

NO_LICENSE = "none stated"


@dataclass
class TextAmount:
    """An amount of text."""

    documents: int = 0
    bytes: int = 0


@dataclass
class SplitSize:
    """What one split of the corpus holds."""

    total: TextAmount
    tokens: int
    sources: dict[tuple[str, str], TextAmount] = field(default_factory=lambda: defaultdict(TextAmount))
    """(source, revision) -> amount."""
    licenses: dict[str, TextAmount] = field(default_factory=lambda: defaultdict(TextAmount))
    """SPDX expression, or empty where none is known -> amount."""
    licenses_of: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    """(source, revision) -> the licences of its documents."""

    @property
    def documents_of_source(self) -> Counter[str]:
        """Source -> documents of all its revisions."""
        counts: Counter[str] = Counter()
        for (source, _), amount in self.sources.items():
            counts[source] += amount.documents
        return counts


def read_split(folder: Path) -> SplitSize:
    """Count a token store's documents by source and by licence."""
    store = TokenStore(folder)
    split = SplitSize(TextAmount(store.manifest.documents, store.manifest.bytes), store.manifest.tokens)
    for info in store.document_infos():
        for amount in (split.sources[info["source"], info["revision"]], split.licenses[info["license"]]):
            amount.documents += 1
            amount.bytes += info["bytes"]
        split.licenses_of[info["source"], info["revision"]].add(info["license"])
    return split


def by_license(split: SplitSize, most: int = ROWS_SHOWN) -> list[tuple[str, str, str]]:
    """Rows of a split's documents and bytes by licence."""
    return [row[:3] for row in amounts([(name or NO_LICENSE, of, "") for name, of in split.licenses.items()], most)]


def by_source(split: SplitSize, most: int = ROWS_SHOWN) -> list[tuple[str, str, str, str]]:
    """Rows of a split's documents and bytes by source and revision, with its licences."""
    licenses = {key: ", ".join(sorted(name or NO_LICENSE for name in of)) for key, of in split.licenses_of.items()}
    named = [(" ".join(key).strip(), amount, licenses.get(key, "")) for key, amount in split.sources.items()]
    return amounts(named, most)


def amounts(named: list[tuple[str, TextAmount, str]], most: int) -> list[tuple[str, str, str, str]]:
    """Name, documents, bytes and remark, the largest first; after `most` rows the rest is summed up in one."""
    ordered = sorted(named, key=lambda row: (-row[1].bytes, row[0]))
    rows = [(name, f"{amount.documents:,}", f"{amount.bytes:,}", remark) for name, amount, remark in ordered[:most]]
    if rest := [amount for _, amount, _ in ordered[most:]]:
        documents, size = sum(amount.documents for amount in rest), sum(amount.bytes for amount in rest)
        rows.append((f"{len(rest):,} more", f"{documents:,}", f"{size:,}", ""))
    return rows
