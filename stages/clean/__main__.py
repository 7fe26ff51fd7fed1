"""Documents -> filtered, deduplicated, split documents and the ledger of verdicts: `python -m stages.clean`."""

from collections import Counter

import pandas as pd

from stages.clean.decontamination import SEARCHED
from stages.clean.judge import check_splits, judge_documents, key_of
from stages.clean.ledger import with_beginnings, write_ledger, write_splits
from stages.clean.params import CleanParams, Decontamination
from stages.formats.cleaning import CleanReport, SearchedItems, SplitCount
from stages.formats.documents import CLEAN, DOCUMENTS, KEPT, LEDGER, PLACE_IN_FILE, require_documents
from stages.formats.tokens import TRAIN, VALIDATION
from stages.runtime.atomic import atomic_folder
from stages.runtime.cache import drop_unused
from stages.runtime.errors import visible
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage

LOUD_SHARE = 0.5
"""A verdict that takes more of a source's bytes is worth a warning."""


def main() -> None:
    params = read_section("clean", CleanParams)
    shards = require_documents(DOCUMENTS)
    judged = judge_documents(shards, params)
    ledger = judged.ledger

    # Before anything may fail: the ledger says why too little is left.
    with atomic_folder(LEDGER) as folder:
        write_ledger(folder, with_beginnings(ledger, judged.masked.paths))
    if params.decontamination is not None:
        print(searched_items(judged.searched, params.decontamination), flush=True)
    check_splits(ledger, params.split)

    with atomic_folder(CLEAN / TRAIN) as train, atomic_folder(CLEAN / VALIDATION) as validation:
        write_splits(judged.masked.paths, ledger, {TRAIN: train, VALIDATION: validation})
    clean_report(ledger, judged.masked.counts, judged.searched).write()
    drop_unused()
    verdicts = ", ".join(f"{verdict} {count:,}" for verdict, count in ledger["verdict"].value_counts().items())
    print(f"documents: {verdicts}", *notes(ledger), sep="\n", flush=True)


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
            f"note: {shared:,} of {held_out:,} held-out documents are parts or rows of files that are also trained on, "
            "so losses partly measure memorization"
        )
    return [visible(line) for line in lines]


def held_out_of_trained_files(ledger: pd.DataFrame) -> int:
    """Held-out documents whose file (the path without the number of a part or row) has training documents too."""
    files = ledger["source"] + "\t" + ledger["path"].str.replace(PLACE_IN_FILE, "", regex=True)
    return int(files[ledger["split"] == VALIDATION].isin(files[ledger["split"] == TRAIN]).sum())


def searched_items(searched: Counter[str], sets: Decontamination) -> str:
    """How many items were searched for in which way, in one line."""
    return (
        f"evaluation items: {searched['by_ngrams']:,} searched for by {sets.ngram_size}-word sequences, "
        f"{searched['whole']:,} shorter ones as a whole, {searched['not_searched']:,} with fewer than "
        f"{sets.minimum_words} words not searched for"
    )


def clean_report(ledger: pd.DataFrame, masked: pd.DataFrame, searched: Counter[str]) -> CleanReport:
    """The report; `masked` counts the masked values of each document of the ledger by kind."""
    is_kept = ledger["verdict"] == KEPT
    found = masked[is_kept] if len(masked) else masked
    drops = ledger[~is_kept].groupby("verdict")
    return CleanReport(
        documents=len(ledger),
        bytes=int(ledger["bytes"].sum()),
        kept=_size(ledger[is_kept]),
        train=_size(ledger[ledger["split"] == TRAIN]),
        validation=_size(ledger[ledger["split"] == VALIDATION]),
        held_out_of_trained_files=held_out_of_trained_files(ledger),
        masked={"documents": int((found.sum(axis=1) > 0).sum()), **found.sum().to_dict()},
        dropped=drops.agg(documents=("bytes", "size"), bytes=("bytes", "sum")).to_dict("index"),
        evaluation_items=SearchedItems(**{name: searched[name] for name in SEARCHED}) if searched else None,
    )


def _size(part: pd.DataFrame) -> SplitCount:
    return SplitCount(documents=len(part), bytes=int(part["bytes"].sum()), sources=part["source"].nunique())


if __name__ == "__main__":
    run_stage(main)
