"""Documents -> filtered, deduplicated, split documents and the ledger of verdicts: `python -m stages.clean`."""

from pathlib import Path

from stages.clean.decontamination import find_contaminated
from stages.clean.ledger import measure_shards, write_ledger
from stages.clean.near_duplicates import find_clusters
from stages.clean.params import CleanParams
from stages.clean.report import contaminated_csv, drops_csv, duplicates_csv, page, summary
from stages.clean.splits import write_sides
from stages.clean.verdicts import (
    CONTAMINATED,
    NEAR_DUPLICATE,
    apply_filters,
    check_sides,
    drop,
    drop_exact_duplicates,
    kept_rows,
    replace,
    split_sides,
)
from stages.formats.documents import require_documents
from stages.formats.reports import write_json
from stages.runtime.atomic import atomic_folder, atomic_write
from stages.runtime.entry import run_stage
from stages.runtime.section import read_section
from stages.runtime.shard_cache import drop_unused
from stages.runtime.versions import require_locked

DOCUMENTS = Path("data/documents")
CLEAN = Path("data/clean")
REPORTS = Path("reports")


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
        ledger = replace(ledger, clusters, NEAR_DUPLICATE)
    ledger = split_sides(ledger, params.split, params.seed)
    check_sides(ledger, params.split)

    with (
        atomic_folder(CLEAN / "ledger") as ledger_folder,
        atomic_folder(CLEAN / "train") as train,
        atomic_folder(CLEAN / "validation") as validation,
    ):
        write_ledger(ledger_folder, ledger)
        masked = write_sides(shards, ledger, params.masks, train, validation)
    atomic_write(CLEAN / "duplicates.csv", duplicates_csv(ledger))
    atomic_write(CLEAN / "contaminated.csv", contaminated_csv(ledger, hits))
    write_json(REPORTS / "clean.json", summary(ledger, masked))
    atomic_write(REPORTS / "clean_drops.csv", drops_csv(ledger))
    atomic_write(REPORTS / "clean.md", page(ledger))
    for cache in ("features", "words", "contamination", "sides"):
        drop_unused(cache)


if __name__ == "__main__":
    run_stage(main)
