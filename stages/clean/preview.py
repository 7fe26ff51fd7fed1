"""Chooses a few documents of each verdict and of each kind of mask, and cuts short what is shown of them.

Chosen are the documents with the smallest ids. An id is a hash of the text, so this is a random choice that depends on
the documents alone; and shards hold ranges of ids, so few of them are read.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from stages.clean.judge import Judgement
from stages.clean.masking import mask
from stages.formats.cleaning import KEPT, Dropped, DroppedBy, Excerpt, MaskedKind, MaskedValue, Preview
from stages.formats.documents import read_shard
from stages.runtime.cache import cache_key, cached, shard_sha256

SHOWN = "shown_texts"
"""The cache of texts by shard, and the file in each of its entries."""

EXAMPLES = 5
"""Of each verdict and of each kind of mask."""

VERDICTS = 25
"""The verdicts with the most documents."""

EXCERPT_CHARACTERS = 500

CONTEXT_CHARACTERS = 80
"""Before a masked value, after it, and of it."""

SHOWN_OF_KEY = 4
"""Characters of a credential."""


def preview(judged: Judgement, shards: Sequence[Path], kinds: Sequence[str]) -> Preview:
    """Examples of what is dropped, and of what is masked in `shards`, the documents as they were collected."""
    ledger, duplicates = judged.ledger, judged.duplicates
    counts = ledger.loc[ledger["verdict"] != KEPT, "verdict"].value_counts().sort_index()
    counts = counts.sort_values(ascending=False, kind="stable").head(VERDICTS)
    chosen = {str(verdict): chosen_rows(ledger, ledger["verdict"] == verdict) for verdict in counts.index}
    rows = {row for some in chosen.values() for row in some}
    pairs = duplicates[duplicates.index.isin(rows)]
    texts = read_texts(judged.masked.paths, ledger, rows.union(pairs["resembled"].astype(int)))
    hits = judged.contamination.hits
    dropped = [
        DroppedBy(
            verdict=verdict,
            documents=int(counts[verdict]),
            examples=[example(ledger, row, texts, pairs[pairs.index == row], hits[hits.index == row]) for row in some],
        )
        for verdict, some in chosen.items()
    ]
    return Preview(dropped=dropped, masked=masked_values(judged, shards, kinds))


def chosen_rows(ledger: pd.DataFrame, among: "pd.Series[bool]") -> list[int]:
    """The rows of the documents with the smallest ids; of equal texts the first."""
    return [int(row) for row in ledger["id"][among].sort_values(kind="stable").index[:EXAMPLES].to_numpy()]


def read_texts(shards: Sequence[Path], ledger: pd.DataFrame, rows: Iterable[int]) -> dict[int, str]:
    """The texts of some rows of the ledger. They are kept, as most of them are wanted again after an edit."""
    names = ledger["shard"]
    first_rows = np.flatnonzero((names != names.shift()).to_numpy())
    paths = {path.name: path for path in shards}
    wanted: dict[int, list[int]] = {}
    for row in sorted(rows):
        first = int(first_rows[np.searchsorted(first_rows, row, side="right") - 1])
        wanted.setdefault(first, []).append(row - first)
    texts: dict[int, str] = {}
    for first, own in wanted.items():
        shard = paths[names.iloc[first]]
        # Here, not by workers: to start them takes longer.
        entry = cached(SHOWN, cache_key(shard_sha256(shard), *map(str, own)), partial(_write_texts, shard, own))
        found = json.loads((entry / SHOWN).read_text(encoding="utf-8"))
        texts |= {first + row: text for row, text in zip(own, found, strict=True)}
    return texts


def _write_texts(shard: Path, rows: Sequence[int], folder: Path) -> None:
    column = read_shard(shard, ["text"]).column("text")
    (folder / SHOWN).write_text(json.dumps([column[row].as_py() for row in rows]), encoding="utf-8")


def example(ledger: pd.DataFrame, row: int, texts: dict[int, str], pair: pd.DataFrame, hit: pd.DataFrame) -> Dropped:
    """One document: from where it differs from the one that it resembles, from the passage, or from its beginning."""
    text, start = texts[row], 0
    resembled, similarity, passage = None, None, ""
    if len(pair):
        other, similarity = int(pair["resembled"].iloc[0]), float(pair["similarity"].iloc[0])
        # Where they differ in their last lines, some of what they share is shown too.
        last = max(min(len(text), len(texts[other])) - EXCERPT_CHARACTERS // 2, 0)
        characters = zip(text[:last], texts[other], strict=False)
        start = line_before(text, next((n for n, (one, two) in enumerate(characters) if one != two), last))
        resembled = excerpt(ledger, other, texts[other], start)
    elif len(hit):
        words = hit["words"].iloc[0]
        passage = f"{hit['evaluation_item'].iloc[0]}: {words}"
        found = re.search(r"\W+".join(map(re.escape, words.split())), text, re.IGNORECASE)
        start = line_before(text, found.start() if found else 0)
    return Dropped(
        document=excerpt(ledger, row, text, start),
        resembled=resembled,
        similarity=similarity,
        passage=passage[:EXCERPT_CHARACTERS],
    )


def line_before(text: str, position: int) -> int:
    """Where the line of a position begins, unless that is far before it."""
    return max(text.rfind("\n", 0, position) + 1, position - CONTEXT_CHARACTERS)


def excerpt(ledger: pd.DataFrame, row: int, text: str, start: int) -> Excerpt:
    """What is shown of a document."""
    return Excerpt(
        source=ledger["source"].iloc[row],
        path=ledger["path"].iloc[row],
        bytes=int(ledger["bytes"].iloc[row]),
        start=start,
        text=text[start : start + EXCERPT_CHARACTERS],
        is_end=len(text) <= start + EXCERPT_CHARACTERS,
    )


def masked_values(judged: Judgement, shards: Sequence[Path], kinds: Sequence[str]) -> list[MaskedKind]:
    """Of some documents the first value of each kind, as it was collected."""
    counts, ledger = judged.masked.counts, judged.ledger
    chosen = {kind: chosen_rows(ledger, counts[kind] > 0) for kind in kinds}
    texts = read_texts(shards, ledger, {row for rows in chosen.values() for row in rows})
    found = []
    for kind, rows in chosen.items():
        values = (masked_value(ledger, row, texts[row], kind, kinds) for row in rows)
        examples = [value for value in values if value is not None]
        found.append(MaskedKind(kind=kind, documents=int((counts[kind] > 0).sum()), examples=examples))
    return found


def masked_value(ledger: pd.DataFrame, row: int, text: str, kind: str, kinds: Sequence[str]) -> MaskedValue | None:
    """The first value of a kind in a text with what is around it; credentials are cut short there too. None where it
    had a placeholder of another kind in it."""
    values = mask(text, kinds).values
    shown = {value: f"{value[:SHOWN_OF_KEY]}…" if name == "keys" else value for name, value in values}
    for value in (value for name, value in values if name == "keys"):
        text = text.replace(value, shown[value])
    value = next(shown[value] for name, value in values if name == kind)
    start = text.find(value)
    if start < 0:
        return None
    after = start + len(value)
    return MaskedValue(
        source=ledger["source"].iloc[row],
        path=ledger["path"].iloc[row],
        before=text[line_before(text, start) : start],
        value=value[:CONTEXT_CHARACTERS],
        after=text[after : after + CONTEXT_CHARACTERS].split("\n")[0],
    )
