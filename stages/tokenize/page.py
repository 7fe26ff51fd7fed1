"""The corpus on one page of HTML, for people: how much, of what, under which licences, what cleaning dropped.

No script, no file beside it: it opens from the folder, and in DVC's and in Prefect's views.
"""

import html
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from stages.formats.ledger import KEPT
from stages.formats.tokens import Manifest, Positions

LEDGER_COLUMNS = ("source", "license", "language", "bytes", "characters", "verdict", "side")

MOST_ROWS = 25
"""Rows of a chart; the rest is summed up in one."""

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
td, th { padding: .15rem .6rem; text-align: right }
td:first-child, th:first-child { text-align: left; overflow-wrap: anywhere } th { border-bottom: 1px solid #999 }
.chart { table-layout: fixed } .chart td:last-child { padding-right: 0 } .chart th:last-child { width: 24% }
.chart th:first-child { width: 29% } .bar { background: #2a7f62; height: .8rem; min-width: 1px }
tr.sum td { border-top: 1px solid #999 }
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a chart."""

    name: str
    documents: int
    bytes: int


def page(ledger: pd.DataFrame, manifests: dict[str, Manifest], lengths: dict[str, Positions]) -> str:
    """The page. `ledger` has `LEDGER_COLUMNS`; `lengths` are the tokens of each document on each side."""
    kept = ledger[ledger["verdict"] == KEPT]
    dropped = ledger[ledger["verdict"] != KEPT]
    drops = grouped(dropped, "verdict")
    drops.sort(key=lambda row: (-row.documents, row.name))
    sections = [
        "<h1>The corpus</h1>",
        opening(kept, manifests),
        at_a_glance(kept, manifests),
        chart("Tokens per document", length_rows(np.concatenate(list(lengths.values()))), by_documents=True),
        chart("Sources", grouped(kept, "source")),
        chart("Licences", grouped(kept, "license")),
        chart("Languages", grouped(kept, "language")),
        f"<h2>What cleaning dropped</h2><p>{len(dropped):,} of {len(ledger):,} collected documents, "
        f"{dropped['bytes'].sum():,} of {ledger['bytes'].sum():,} bytes, each counted under the first filter that "
        "drops it.</p>",
        chart("", drops, by_documents=True) if drops else "",
    ]
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>The corpus</title><style>{STYLE}</style>"
    return head + "\n".join(sections) + "\n</html>\n"


def opening(kept: pd.DataFrame, manifests: dict[str, Manifest]) -> str:
    """The corpus in one sentence."""
    first = next(iter(manifests.values()))
    size = sum(manifest.bytes for manifest in manifests.values())
    tokens = sum(manifest.tokens for manifest in manifests.values())
    return (
        f"<p>{len(kept):,} documents of {kept['source'].nunique():,} sources, {in_words(size)}bytes "
        f"of text, {in_words(tokens)}tokens of a vocabulary of {first.vocab_size:,}, encoded by {first.engine}.</p>"
    )


def in_words(number: int) -> str:
    """A number with three digits, to be followed by its noun: `10.6 million `."""
    for limit, word in ((10**12, "trillion "), (10**9, "billion "), (10**6, "million ")):
        if number >= limit:
            return f"{number / limit:.3g} {word}"
    return f"{number:,} "


def at_a_glance(kept: pd.DataFrame, manifests: dict[str, Manifest]) -> str:
    """The sizes of each side, and of both, as a table."""
    headings = ("documents", "sources", "bytes", "tokens", "characters per token", "tokens per document")
    rows = [_sizes(side, kept[kept["side"] == side], [manifest]) for side, manifest in manifests.items()]
    both = _sizes("together", kept, list(manifests.values())).replace("<tr>", "<tr class=sum>")
    return f"<table>{_cells('th', '', *headings)}{''.join(rows)}{both}</table>"


def _sizes(name: str, part: pd.DataFrame, manifests: list[Manifest]) -> str:
    documents = sum(manifest.documents for manifest in manifests)
    tokens = sum(manifest.tokens for manifest in manifests)
    return _cells(
        "td",
        name,
        f"{documents:,}",
        f"{part['source'].nunique():,}",
        f"{sum(manifest.bytes for manifest in manifests):,}",
        f"{tokens:,}",
        f"{int(part['characters'].sum()) / tokens:.2f}",
        f"{tokens / documents:,.0f}",
    )


def grouped(part: pd.DataFrame, column: str) -> list[Row]:
    """Documents and bytes by the values of a column, the most bytes first."""
    groups = part.groupby(column)["bytes"].agg(["size", "sum"])
    rows = [Row(str(name) or "unknown", int(size), int(total)) for name, size, total in groups.itertuples()]
    rows.sort(key=lambda row: (-row.bytes, row.name))
    rest = rows[MOST_ROWS:]
    if not rest:
        return rows
    others = Row(f"{len(rest)} others", sum(row.documents for row in rest), sum(row.bytes for row in rest))
    return [*rows[:MOST_ROWS], others]


def length_rows(lengths: Positions) -> list[Row]:
    """Documents by their number of tokens, in ranges that double."""
    powers = np.floor(np.log2(lengths)).astype(np.int64)
    counts = np.bincount(powers)
    first = int(np.flatnonzero(counts)[0])
    names = [f"{2**k:,} to {2 ** (k + 1) - 1:,}" if k else "1" for k in range(len(counts))]
    return [Row(names[k], int(counts[k]), 0) for k in range(first, len(counts))]


def chart(title: str, rows: Iterable[Row], by_documents: bool = False) -> str:
    """Rows with bars as long as their share of the largest; the share of the sum stands beside what it is of."""
    lines = list(rows)
    with_bytes = any(row.bytes for row in lines)
    measures = [row.documents if by_documents else row.bytes for row in lines]
    body = []
    for row, measure in zip(lines, measures, strict=True):
        share = f"{measure / sum(measures):.1%}"
        sizes = [f"{row.documents:,}", *([f"{row.bytes:,}"] if with_bytes else [])]
        sizes.insert(1 if by_documents else 2, share)
        bar = f'<div class=bar style="width:{measure / max(measures):.1%}"></div>' if measure else ""
        body.append(_cells("td", row.name, *sizes).removesuffix("</tr>") + f"<td>{bar}</td></tr>")
    headings = ["documents", *(["bytes"] if with_bytes else []), ""]
    headings.insert(1 if by_documents else 2, "share")
    heading = f"<h2>{html.escape(title)}</h2>" if title else ""
    return f"{heading}<table class=chart>{_cells('th', '', *headings)}{''.join(body)}</table>"


def _cells(tag: str, *texts: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"
