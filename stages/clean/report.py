"""What was kept and what was dropped, per filter: figures for DVC, a table for people."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from stages.clean.decontamination import Hit
from stages.clean.verdicts import TRAIN, VALIDATION
from stages.formats.ledger import KEPT


def drop_counts(ledger: pd.DataFrame) -> list[tuple[str, int, int]]:
    """Filter, documents and bytes for each filter that dropped something; the most documents first."""
    dropped = ledger[ledger["verdict"] != KEPT].groupby("verdict")
    counts = zip(dropped.size().items(), dropped["bytes"].sum(), strict=True)
    return sorted(
        ((str(name), int(count), int(size)) for (name, count), size in counts), key=lambda row: (-row[1], row[0])
    )


def drops_csv(ledger: pd.DataFrame) -> str:
    """The same as CSV, for the bar chart."""
    return "".join(f"{','.join(map(str, row))}\n" for row in [("filter", "documents", "bytes"), *drop_counts(ledger)])


def duplicates_csv(ledger: pd.DataFrame) -> str:
    """A row for each document that another one stands for: the verdict, both sources, both paths."""
    dropped = ledger[ledger["stands_for_it"] != ledger.index]
    kept = ledger.loc[_last_standing(ledger, dropped["stands_for_it"])]
    table = pd.DataFrame(
        {
            "kept_source": kept["source"].to_numpy(),
            "kept_path": kept["path"].to_numpy(),
            "dropped_source": dropped["source"].to_numpy(),
            "dropped_path": dropped["path"].to_numpy(),
            "verdict": dropped["verdict"].to_numpy(),
        }
    )
    return table.sort_values(list(table.columns)).to_csv(index=False, lineterminator="\n")


def contaminated_csv(ledger: pd.DataFrame, hits: Sequence[Hit]) -> str:
    """A row for each document with a passage of an evaluation set: which item, and the words they share."""
    rows = [
        (ledger.at[hit.row, "source"], ledger.at[hit.row, "path"], ledger.at[hit.row, "verdict"], hit.item, hit.words)
        for hit in hits
    ]
    table = pd.DataFrame(sorted(rows), columns=["source", "path", "verdict", "evaluation_item", "words"])
    return table.to_csv(index=False, lineterminator="\n")


def _last_standing(ledger: pd.DataFrame, rows: pd.Series) -> pd.Series:
    """An exact duplicate's first copy may itself be a near-duplicate of another document."""
    return ledger["stands_for_it"].loc[rows]


def summary(ledger: pd.DataFrame, masked: Counter[str]) -> dict[str, Any]:
    """The metrics of `reports/clean.json`."""
    return {
        "documents": len(ledger),
        "bytes": int(ledger["bytes"].sum()),
        "kept": _size(ledger[ledger["verdict"] == KEPT]),
        "train": _size(ledger[ledger["side"] == TRAIN]),
        "validation": _size(ledger[ledger["side"] == VALIDATION]),
        "masked": dict(masked),
        "dropped": {name: {"documents": count, "bytes": size} for name, count, size in drop_counts(ledger)},
    }


def _size(part: pd.DataFrame) -> dict[str, int]:
    return {"documents": len(part), "bytes": int(part["bytes"].sum()), "sources": part["source"].nunique()}


def page(ledger: pd.DataFrame) -> str:
    """The same as a Markdown page with the share of each."""
    documents, size = len(ledger), int(ledger["bytes"].sum())
    lines = ["# Cleaning", "", "| | documents | | bytes | |", "|---|--:|--:|--:|--:|"]

    def add(name: str, part_documents: int, part_bytes: int) -> None:
        shares = (part_documents / documents, part_bytes / size)
        lines.append(f"| {name} | {part_documents:,} | {shares[0]:.1%} | {part_bytes:,} | {shares[1]:.1%} |")

    add("collected", documents, size)
    for name, count, dropped_bytes in drop_counts(ledger):
        add(f"dropped: {name}", count, dropped_bytes)
    for side in (TRAIN, VALIDATION):
        part = ledger[ledger["side"] == side]
        add(f"**{side}**", len(part), int(part["bytes"].sum()))
    held_out = ", ".join(sorted(ledger.loc[ledger["side"] == VALIDATION, "source"].unique())[:50])
    return "\n".join([*lines, "", f"Sources on the validation side: {held_out}.", ""])
