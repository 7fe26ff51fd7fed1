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
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100% } td, th { padding: .15rem .6rem; text-align: right }
td:first-child, th:first-child { text-align: left } th { border-bottom: 1px solid #999 }
.bar { width: 40% } .bar div { background: #2a7f62; height: .8rem }
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
    sections = [
        "<h1>The corpus</h1>",
        at_a_glance(kept, manifests),
        chart("Tokens per document", length_rows(np.concatenate(list(lengths.values()))), by_documents=True),
        chart("Sources", grouped(kept, "source")),
        chart("Licences", grouped(kept, "license")),
        chart("Languages", grouped(kept, "language")),
        f"<h2>What cleaning dropped</h2><p>{len(dropped):,} of {len(ledger):,} collected documents, "
        f"{dropped['bytes'].sum():,} of {ledger['bytes'].sum():,} bytes.</p>",
        chart("", grouped(dropped, "verdict"), by_documents=True),
    ]
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>The corpus</title><style>{STYLE}</style>"
    return head + "\n".join(sections) + "\n</html>\n"


def at_a_glance(kept: pd.DataFrame, manifests: dict[str, Manifest]) -> str:
    """The sizes of each side as a table."""
    rows = []
    for side, manifest in manifests.items():
        part = kept[kept["side"] == side]
        characters = int(part["characters"].sum())
        cells = (
            f"{manifest.documents:,}",
            f"{part['source'].nunique():,}",
            f"{manifest.bytes:,}",
            f"{manifest.tokens:,}",
            f"{characters / manifest.tokens:.2f}",
            f"{manifest.tokens / manifest.documents:,.0f}",
        )
        rows.append(_cells("td", side, *cells))
    headings = ("documents", "sources", "bytes", "tokens", "characters per token", "tokens per document")
    return f"<table>{_cells('th', '', *headings)}{''.join(rows)}</table>"


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
    return [Row(f"{2**k:,} to {2 ** (k + 1) - 1:,}", int(counts[k]), 0) for k in range(first, len(counts))]


def chart(title: str, rows: Iterable[Row], by_documents: bool = False) -> str:
    """Rows with bars, as long as their share of the largest."""
    lines = list(rows)
    with_bytes = any(row.bytes for row in lines)
    largest = max((row.documents if by_documents else row.bytes for row in lines), default=1)
    body = []
    for row in lines:
        share = (row.documents if by_documents else row.bytes) / max(largest, 1)
        sizes = (f"{row.documents:,}", *([f"{row.bytes:,}"] if with_bytes else []))
        bar = f'<td class=bar><div style="width:{share:.1%}"></div></td></tr>'
        body.append(_cells("td", row.name, *sizes).removesuffix("</tr>") + bar)
    headings = ("documents", *(["bytes"] if with_bytes else []), "")
    heading = f"<h2>{html.escape(title)}</h2>" if title else ""
    return f"{heading}<table>{_cells('th', '', *headings)}{''.join(body)}</table>"


def _cells(tag: str, *texts: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"
