"""Documents -> filtered, deduplicated, split documents and the ledger of verdicts: `python -m stages.clean`.

What was kept and what was dropped is reported per filter: figures for DVC, tables for people.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from stages.clean.decontamination import Contamination
from stages.clean.judge import check_splits, judge, kept_rows, key_of
from stages.clean.ledger import write_ledger, write_splits
from stages.clean.params import CleanParams, Decontamination
from stages.clean.preview import SHOWN, preview
from stages.formats.cleaning import KEPT, LEDGER
from stages.formats.documents import CLEAN, DOCUMENTS, PLACE_IN_FILE, require_documents
from stages.formats.pages import escape, table
from stages.formats.reports import REPORTS, write_json
from stages.formats.splits import SPLITS, TRAIN, VALIDATION
from stages.runtime.atomic import atomic_folder, atomic_write
from stages.runtime.cache import drop_unused
from stages.runtime.entry import run_stage, visible
from stages.runtime.inputs import require_listed
from stages.runtime.section import read_section

LOUD_SHARE = 0.5
"""A verdict that takes more of a source's bytes is worth a warning."""


def main() -> None:
    params = read_section("clean", CleanParams)
    for file in params.decontamination.files if params.decontamination else ():
        require_listed("clean.decontamination.files", Path(file))
    shards = require_documents(DOCUMENTS)
    judged = judge(shards, params)
    ledger = judged.ledger

    # Before anything may fail: the ledger says why too little is left.
    with atomic_folder(LEDGER) as folder:
        write_ledger(folder, ledger)
    atomic_write(CLEAN / "duplicates.csv", duplicates_csv(ledger, judged.duplicates))
    atomic_write(CLEAN / "contaminated.csv", contaminated_csv(ledger, judged.contamination))
    atomic_write(CLEAN / "evaluation_items.csv", as_csv(judged.contamination.items))
    if params.decontamination is not None:
        print(searched_items(judged.contamination, params.decontamination), flush=True)
    preview(judged, shards, params.masks.kinds).write()
    check_splits(ledger, params.split, params.seed)

    with atomic_folder(CLEAN / TRAIN) as train, atomic_folder(CLEAN / VALIDATION) as validation:
        write_splits(judged.masked.paths, ledger, {TRAIN: train, VALIDATION: validation})
    write_json(REPORTS / "clean.json", summary(ledger, judged.masked.counts) | item_counts(judged.contamination))
    atomic_write(REPORTS / "clean_drops.csv", as_csv(drop_counts(ledger)))
    atomic_write(CLEAN / "report.md", markdown_report(ledger))
    for cache in ("masked", "features", "words", "contamination", "splits", SHOWN):
        drop_unused(cache)
    print(f"kept {len(kept_rows(ledger)):,} of {len(ledger):,} documents", *notes(ledger), sep="\n", flush=True)


def notes(ledger: pd.DataFrame) -> list[str]:
    """A line about each verdict that took more than half of the bytes of a source, and one about held-out documents
    whose file is trained on."""
    total = ledger.groupby("source")["bytes"].sum()
    lines = []
    for verdict, rows in ledger[ledger["verdict"] != KEPT].groupby("verdict"):
        shares = (rows.groupby("source")["bytes"].sum() / total).dropna()
        if (shares := shares[shares > LOUD_SHARE].sort_values(ascending=False, kind="stable")).size:
            others = f" (and more than half of {len(shares) - 1} other sources)" if len(shares) > 1 else ""
            lines.append(
                f"WARNING: `{verdict}` dropped {shares.iloc[0]:.0%} of the bytes of {shares.index[0]}{others}: "
                f"see {key_of(str(verdict))} in params.yaml"
            )
    if shared := held_out_of_trained_files(ledger):
        held_out = int((ledger["split"] == VALIDATION).sum())
        lines.append(
            f"note: {shared:,} of {held_out:,} held-out documents are parts or rows of files that are trained on too: "
            "losses measure memory of these files as well"
        )
    return [visible(line) for line in lines]


def held_out_of_trained_files(ledger: pd.DataFrame) -> int:
    """Held-out documents whose file (the path without the number of a part or row) has training documents too."""
    files = ledger["source"] + "\t" + ledger["path"].str.replace(PLACE_IN_FILE, "", regex=True)
    return int(files[ledger["split"] == VALIDATION].isin(files[ledger["split"] == TRAIN]).sum())


def drop_counts(ledger: pd.DataFrame) -> pd.DataFrame:
    """Filter, documents and bytes for each filter that dropped something; the most documents first."""
    by_filter = (
        ledger[ledger["verdict"] != KEPT].rename(columns={"verdict": "filter"}).groupby("filter", as_index=False)
    )
    counts = by_filter.agg(documents=("bytes", "size"), bytes=("bytes", "sum"))
    return counts.sort_values(["documents", "filter"], ascending=[False, True])


def duplicates_csv(ledger: pd.DataFrame, duplicates: pd.DataFrame) -> str:
    """A row for each duplicate that is dropped: which document it resembles and how much (the exact Jaccard similarity
    of their words; 1 if only white space differs)."""

    def named(role: str, rows: "pd.Index | pd.Series") -> pd.DataFrame:
        return ledger.loc[rows, ["source", "path"]].add_prefix(f"{role}_").reset_index(drop=True)

    own = duplicates.assign(verdict=ledger["verdict"]).reset_index(drop=True)
    dropped, resembled = named("dropped", duplicates.index), named("resembled", duplicates["resembled"])
    rows = pd.concat([dropped, own["verdict"], resembled, own["similarity"]], axis=1)
    return as_csv(rows.sort_values(rows.columns.to_list()))


def contaminated_csv(ledger: pd.DataFrame, contamination: Contamination) -> str:
    """A row for each document with a passage of an evaluation set: which item, and the words they share."""
    rows = ledger.loc[contamination.hits.index, ["source", "path", "verdict"]].join(contamination.hits)
    return as_csv(rows.sort_values(rows.columns.to_list()))


def as_csv(rows: pd.DataFrame) -> str:
    """A table as CSV; of numbers six digits."""
    return rows.to_csv(index=False, lineterminator="\n", float_format="%.6g")


def searched_items(contamination: Contamination, sets: Decontamination) -> str:
    """How many items were searched for in which way, in one line."""
    return (
        f"evaluation items: {contamination.searched('ngrams'):,} searched for by {sets.ngram_size} words in a row, "
        f"{contamination.searched('whole'):,} shorter ones as a whole, {contamination.searched('no'):,} with fewer "
        f"than {sets.minimum_words} words not searched for (data/clean/evaluation_items.csv)"
    )


def item_counts(contamination: Contamination) -> dict[str, Any]:
    """The same for `reports/clean.json`; nothing where there is no evaluation set."""
    if contamination.items.empty:
        return {}
    names = {"by_ngrams": "ngrams", "whole": "whole", "not_searched": "no"}
    return {"evaluation_items": {name: contamination.searched(how) for name, how in names.items()}}


def summary(ledger: pd.DataFrame, masked: pd.DataFrame) -> dict[str, Any]:
    """The metrics of `reports/clean.json`; `masked` counts the masked values of each document of the ledger by kind."""
    is_kept = ledger["verdict"] == KEPT
    found = masked[is_kept] if len(masked) else masked
    return {
        "documents": len(ledger),
        "bytes": int(ledger["bytes"].sum()),
        "kept": _size(ledger[is_kept]),
        "train": _size(ledger[ledger["split"] == TRAIN]),
        "validation": _size(ledger[ledger["split"] == VALIDATION]),
        "held_out_of_trained_files": held_out_of_trained_files(ledger),
        "masked": {"documents": int((found.sum(axis=1) > 0).sum()), **found.sum().to_dict()},
        "dropped": drop_counts(ledger).set_index("filter").to_dict("index"),
    }


def _size(part: pd.DataFrame) -> dict[str, int]:
    return {"documents": len(part), "bytes": int(part["bytes"].sum()), "sources": part["source"].nunique()}


def markdown_report(ledger: pd.DataFrame) -> str:
    """The same as a Markdown table with the share of each."""
    documents, size = len(ledger), int(ledger["bytes"].sum())
    parts = [("collected", documents, size)]
    parts += [(f"dropped: {name}", *counts) for name, *counts in drop_counts(ledger).itertuples(index=False)]
    for split in SPLITS:
        part = ledger[ledger["split"] == split]
        parts.append((split, len(part), int(part["bytes"].sum())))
    rows = [
        (name, f"{count:,}", f"{count / documents:.1%}", f"{part_size:,}", f"{part_size / size:.1%}")
        for name, count, part_size in parts
    ]
    held_out = sorted(ledger.loc[ledger["split"] == VALIDATION, "source"].unique())[:50]
    sources = escape(", ".join(held_out))
    return f"# Cleaning\n\n{table(('', 'documents', '', 'bytes', ''), rows)}\nSources held out: {sources}.\n"


if __name__ == "__main__":
    run_stage(main)
