"""Documents -> filtered, deduplicated, split documents and the ledger of verdicts: `python -m stages.clean`."""

from stages.clean.decontamination import find_contaminated
from stages.clean.ledger import measure_shards, write_ledger
from stages.clean.near_duplicates import find_clusters
from stages.clean.params import CleanParams
from stages.clean.report import contaminated_csv, drops_csv, duplicates_csv, markdown_report, summary
from stages.clean.splits import write_splits
from stages.clean.verdicts import (
    CONTAMINATED,
    NEAR_DUPLICATE,
    apply_filters,
    assign_splits,
    check_splits,
    drop,
    drop_duplicates,
    drop_exact_duplicates,
    kept_rows,
)
from stages.formats.documents import CLEAN, DOCUMENTS, require_documents
from stages.formats.ledger import LEDGER
from stages.formats.reports import REPORTS, write_json
from stages.formats.splits import TRAIN, VALIDATION
from stages.runtime.atomic import atomic_folder, atomic_write
from stages.runtime.entry import run_stage
from stages.runtime.section import read_section
from stages.runtime.shard_cache import drop_unused
from stages.runtime.versions import require_locked


def main() -> None:
    params = read_section("clean", CleanParams)
    require_locked("numpy", "pandas", "pyarrow", "rensa", *(["detect-secrets"] if params.masks.keys else []))
    shards = require_documents(DOCUMENTS)

    ledger = apply_filters(measure_shards(shards), params.filters, params.seed)
    hits = find_contaminated(shards, params.decontamination) if params.decontamination is not None else []
    ledger = drop(ledger, [hit.row for hit in hits], CONTAMINATED)
    ledger = drop_exact_duplicates(ledger)
    if params.near_duplicates is not None:
        clusters = find_clusters(shards, ledger, kept_rows(ledger), params.near_duplicates)
        ledger = drop_duplicates(ledger, clusters, NEAR_DUPLICATE)
    ledger = assign_splits(ledger, params.split, params.seed)
    check_splits(ledger, params.split)

    with (
        atomic_folder(LEDGER) as ledger_folder,
        atomic_folder(CLEAN / TRAIN) as train,
        atomic_folder(CLEAN / VALIDATION) as validation,
    ):
        write_ledger(ledger_folder, ledger)
        masked = write_splits(shards, ledger, params.masks, {TRAIN: train, VALIDATION: validation})
    atomic_write(CLEAN / "duplicates.csv", duplicates_csv(ledger))
    atomic_write(CLEAN / "contaminated.csv", contaminated_csv(ledger, hits))
    write_json(REPORTS / "clean.json", summary(ledger, masked))
    atomic_write(REPORTS / "clean_drops.csv", drops_csv(ledger))
    atomic_write(REPORTS / "clean.md", markdown_report(ledger))
    for cache in ("features", "words", "contamination", "splits"):
        drop_unused(cache)


if __name__ == "__main__":
    run_stage(main)
