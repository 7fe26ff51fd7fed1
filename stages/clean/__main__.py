"""Documents -> filtered, deduplicated, split documents and the ledger of verdicts: `python -m stages.clean`."""

from stages.clean.judge import judge
from stages.clean.ledger import write_ledger
from stages.clean.params import CleanParams
from stages.clean.report import contaminated_csv, drops_csv, duplicates_csv, markdown_report, summary
from stages.clean.splits import write_splits
from stages.clean.verdicts import check_splits
from stages.formats.documents import CLEAN, DOCUMENTS, require_documents
from stages.formats.ledger import LEDGER
from stages.formats.reports import REPORTS, write_json
from stages.formats.splits import TRAIN, VALIDATION
from stages.runtime.atomic import atomic_folder, atomic_write
from stages.runtime.cache import drop_unused
from stages.runtime.entry import run_stage
from stages.runtime.section import read_section


def main() -> None:
    params = read_section("clean", CleanParams)
    judged = judge(require_documents(DOCUMENTS), params)
    ledger = judged.ledger

    # Before anything may fail: the ledger says why too little is left.
    with atomic_folder(LEDGER) as folder:
        write_ledger(folder, ledger)
    atomic_write(CLEAN / "duplicates.csv", duplicates_csv(ledger))
    atomic_write(CLEAN / "contaminated.csv", contaminated_csv(ledger, judged.hits))
    check_splits(ledger, params.split, params.seed)

    with atomic_folder(CLEAN / TRAIN) as train, atomic_folder(CLEAN / VALIDATION) as validation:
        write_splits(judged.masked.paths, ledger, {TRAIN: train, VALIDATION: validation})
    write_json(REPORTS / "clean.json", summary(ledger, judged.masked.counts))
    atomic_write(REPORTS / "clean_drops.csv", drops_csv(ledger))
    atomic_write(CLEAN / "report.md", markdown_report(ledger))
    for cache in ("masked", "features", "words", "contamination", "splits"):
        drop_unused(cache)


if __name__ == "__main__":
    run_stage(main)
