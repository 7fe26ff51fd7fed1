"""Documents -> filtered, deduplicated, split documents and the ledger of verdicts: `python -m stages.clean`."""

from pathlib import Path

from stages.clean.ledger import measure_shards, write_ledger
from stages.clean.params import CleanParams
from stages.clean.report import drops_csv, page, summary
from stages.clean.sides import write_sides
from stages.clean.verdicts import check_sides, judge
from stages.formats.atomic import whole_folder, write_whole_file
from stages.formats.documents import require_documents
from stages.formats.entry import run_stage
from stages.formats.reports import write_json
from stages.formats.section import read_section
from stages.formats.shard_cache import drop_unused
from stages.formats.versions import require_locked

DOCUMENTS = Path("data/documents")
CLEAN = Path("data/clean")
REPORTS = Path("reports")


def main() -> None:
    params = read_section("clean", CleanParams)
    require_locked("numpy", "pandas", "pyarrow")
    shards = require_documents(DOCUMENTS)

    ledger = judge(measure_shards(shards), params)
    check_sides(ledger, params.split)
    with (
        whole_folder(CLEAN / "ledger") as ledger_folder,
        whole_folder(CLEAN / "train") as train,
        whole_folder(CLEAN / "validation") as validation,
    ):
        write_ledger(ledger_folder, ledger)
        write_sides(shards, ledger, train, validation)
    write_json(REPORTS / "clean.json", summary(ledger))
    write_whole_file(REPORTS / "clean_drops.csv", drops_csv(ledger))
    write_whole_file(REPORTS / "clean.md", page(ledger))
    drop_unused("features")
    drop_unused("sides")


if __name__ == "__main__":
    run_stage(main)
