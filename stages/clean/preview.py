"""Chooses a few documents of each verdict, and cuts short what is shown of them.

Chosen are the documents with the smallest ids. An id is a hash of the text, so this is a random choice that depends on
the documents alone; and shards hold ranges of ids, so few of them are read.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from stages.formats.cleaning import KEPT, Dropped, DroppedBy, Preview
from stages.formats.documents import read_shard

EXAMPLES = 5
"""Of each verdict."""

VERDICTS = 25
"""The verdicts with the most documents."""

CHARACTERS = 500
"""Of a document."""


def preview(ledger: pd.DataFrame, shards: Sequence[Path]) -> Preview:
    """Examples of what is dropped of `shards`, the documents as they were judged."""
    counts = ledger.loc[ledger["verdict"] != KEPT, "verdict"].value_counts().sort_index()
    counts = counts.sort_values(ascending=False, kind="stable").head(VERDICTS)
    chosen = {str(verdict): chosen_rows(ledger, ledger["verdict"] == verdict) for verdict in counts.index}
    texts = read_texts(shards, ledger, (row for rows in chosen.values() for row in rows))
    return Preview(
        dropped=[
            DroppedBy(
                verdict=verdict,
                documents=int(counts[verdict]),
                examples=[example(ledger.iloc[row], texts[row]) for row in rows],
            )
            for verdict, rows in chosen.items()
        ]
    )


def chosen_rows(ledger: pd.DataFrame, among: "pd.Series[bool]") -> list[int]:
    """The rows of the documents with the smallest ids; of equal texts the first."""
    return [int(row) for row in ledger["id"][among].sort_values(kind="stable").index[:EXAMPLES].to_numpy()]


def read_texts(shards: Sequence[Path], ledger: pd.DataFrame, rows: Iterable[int]) -> dict[int, str]:
    """The texts of some rows of the ledger, by row."""
    paths = {path.name: path for path in shards}
    first_rows = ledger.index.to_series().groupby(ledger["shard"]).min()
    texts: dict[int, str] = {}
    for name, own in ledger.loc[sorted(rows)].groupby("shard"):
        column = read_shard(paths[str(name)], ["text"]).column("text")
        texts |= {int(row): column[int(row - first_rows[name])].as_py() for row in own.index}
    return texts


def example(facts: pd.Series, text: str) -> Dropped:
    """What is shown of a document."""
    return Dropped(
        source=facts["source"],
        path=facts["path"],
        bytes=int(facts["bytes"]),
        because=facts["because"][:CHARACTERS],
        beginning=text[:CHARACTERS],
        is_all=len(text) <= CHARACTERS,
    )
