"""Sources -> documents: `python -m stages.collect`."""

from stages.collect.content_check import SeenFiles
from stages.collect.gather import Taken, gather
from stages.collect.params import CollectParams, Packages
from stages.collect.report import LEFT_OUT, corpus_id, left_out_table, misplaced, reasons, summary
from stages.collect.trie import CACHE_NAME, write_documents
from stages.formats.documents import DOCUMENTS
from stages.formats.reports import REPORTS, write_json
from stages.runtime.atomic import atomic_folder, atomic_write
from stages.runtime.cache import drop_unused
from stages.runtime.entry import UserError, run_stage
from stages.runtime.section import read_section
from stages.runtime.stage_code import require_locked


def main() -> None:
    params = read_section("collect", CollectParams)
    packages = [name for source in params.sources if isinstance(source, Packages) for name in source.names]
    require_locked(*packages)
    taken, seen = Taken(), SeenFiles()
    with atomic_folder(DOCUMENTS) as folder:
        write_documents(folder, gather(params, taken, seen), params.shard_bytes)
        if not taken.documents:
            raise UserError(f"collect: the corpus is empty: {reasons(taken)}")
    write_json(REPORTS / "collect.json", summary(taken, corpus_id(DOCUMENTS)))
    atomic_write(LEFT_OUT, left_out_table(taken))
    seen.save()
    drop_unused(CACHE_NAME)
    counts = f"{taken.documents.total():,} documents, {taken.total_bytes:,} bytes"
    print(f"collected {counts}; left out {taken.reasons.total():,}", *misplaced(taken), sep="\n")


if __name__ == "__main__":
    run_stage(main)
