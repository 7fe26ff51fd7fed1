"""Ledger + token stores -> data/corpus.html: `python -m stages.corpus_page`.

A page about the corpus: sizes, sources, licenses, and what cleaning dropped, with examples.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from stages.formats.documents import KEPT, read_ledger
from stages.formats.pages import filled_template
from stages.formats.tokens import SPLITS, TOKENS, Manifest, Positions, TokenStore
from stages.runtime.atomic import atomic_write
from stages.runtime.errors import visible
from stages.runtime.stage import run_stage

PAGE_TEMPLATE = Path(__file__).with_name("corpus.html.jinja")

LEDGER_COLUMNS = (
    "source", "path", "license", "language", "bytes", "characters", "verdict", "because", "split", "beginning",
)  # fmt: skip

MAX_BARS = 25
"""Bars in a chart; one more sums up the rest."""


def main() -> None:
    stores = {split: TokenStore(TOKENS / split) for split in SPLITS}
    manifests = {split: store.manifest for split, store in stores.items()}
    lengths = {split: store.document_lengths for split, store in stores.items()}
    page = html_report(read_ledger(LEDGER_COLUMNS).to_pandas(), manifests, lengths)
    atomic_write(Path("data/corpus.html"), page)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart."""

    name: str
    documents: int
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a split or of the whole corpus."""

    name: str
    documents: int
    sources: int
    bytes: int
    tokens: int
    characters: int


def html_report(ledger: pd.DataFrame, manifests: dict[str, Manifest], lengths: dict[str, Positions]) -> str:
    """The page. `ledger` has `LEDGER_COLUMNS`; `lengths` maps splits to the number of tokens of each document."""
    kept = ledger[ledger["verdict"] == KEPT]
    dropped = ledger[ledger["verdict"] != KEPT]
    shown_of = dropped[dropped["beginning"] != ""]
    manifest = next(iter(manifests.values()))
    return filled_template(
        PAGE_TEMPLATE,
        {
            "number": "{:,.0f}".format,
            "percent": "{:.1%}".format,
            "in_words": in_words,
            "visible": lambda text: visible(text.replace("\r\n", "\n"), kept="\n\t"),
        },
        sizes=[size(split, kept[kept["split"] == split], [store]) for split, store in manifests.items()],
        total=size("together", kept, list(manifests.values())),
        vocabulary_size=manifest.vocab_size,
        engine=manifest.engine,
        charts={
            "Tokens per document": (length_bars(np.concatenate(list(lengths.values()))), "documents"),
            "Sources": (grouped(kept, "source"), "bytes"),
            "Licenses": (grouped(kept, "license"), "bytes"),
            "Languages": (grouped(kept, "language"), "bytes"),
        },
        collected=Bar("", len(ledger), int(ledger["bytes"].sum())),
        dropped=Bar("", len(dropped), int(dropped["bytes"].sum())),
        drops=sorted(grouped(dropped, "verdict"), key=lambda bar: (-bar.documents, bar.name)),
        examples={verdict: rows.to_dict("records") for verdict, rows in shown_of.groupby("verdict")},
    )


def size(name: str, part: pd.DataFrame, manifests: list[Manifest]) -> Size:
    """The size of a part of the ledger and of its token stores."""
    return Size(
        name=name,
        documents=sum(manifest.documents for manifest in manifests),
        sources=part["source"].nunique(),
        bytes=sum(manifest.bytes for manifest in manifests),
        tokens=sum(manifest.tokens for manifest in manifests),
        characters=int(part["characters"].sum()),
    )


def in_words(number: int) -> str:
    """Format with three digits and a trailing space: `10.6 million `."""
    rounded = float(f"{number:.3g}")  # before the unit is chosen: 999.7 million are a billion
    for limit, word in ((10**12, "trillion "), (10**9, "billion "), (10**6, "million ")):
        if rounded >= limit and number >= 10**6:
            return f"{rounded / limit:.3g} {word}"
    return f"{number:,} "


def grouped(part: pd.DataFrame, column: str) -> list[Bar]:
    """Documents and bytes by the values of a column, sorted by bytes."""
    groups = part.groupby(column)["bytes"].agg(["size", "sum"])
    bars = [Bar(str(name) or "unknown", int(size), int(total)) for name, size, total in groups.itertuples()]
    bars.sort(key=lambda bar: (-bar.bytes, bar.name))
    rest = bars[MAX_BARS:]
    if not rest:
        return bars
    others = Bar(f"{len(rest)} others", sum(bar.documents for bar in rest), sum(bar.bytes for bar in rest))
    return [*bars[:MAX_BARS], others]


def length_bars(lengths: Positions) -> list[Bar]:
    """Documents by number of tokens, in ranges that double: 1, 2 to 3, 4 to 7, ..."""
    counts = np.bincount(np.floor(np.log2(lengths)).astype(np.int64))
    first = int(np.flatnonzero(counts)[0])
    names = [f"{2**k:,} to {2 ** (k + 1) - 1:,}" if k else "1" for k in range(len(counts))]
    return [Bar(names[k], int(counts[k])) for k in range(first, len(counts))]


if __name__ == "__main__":
    run_stage(main)
