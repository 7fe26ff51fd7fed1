"""Sources -> documents, and what was left out: `python -m stages.collect`."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.collect.content_check import SeenFiles
from stages.collect.gather import Taken, gather
from stages.collect.located import before_wildcards
from stages.collect.params import CollectParams
from stages.collect.remote import KIND as DOWNLOADS
from stages.collect.remote import forget_unfinished, versions
from stages.collect.source_kinds import source_kinds
from stages.collect.trie import CACHE_NAME, write_documents
from stages.formats.documents import DOCUMENTS, corpus_id, shard_paths
from stages.formats.reports import REPORTS, write_json
from stages.runtime.atomic import atomic_folder, atomic_write
from stages.runtime.cache import drop_unused
from stages.runtime.entry import InputsChangedError, UserError, run_stage
from stages.runtime.inputs import Inputs, inputs_of_this_stage
from stages.runtime.section import read_section
from stages.runtime.stage_code import require_locked

LEFT_OUT_TABLE = Path("data/left_out.csv")

LARGEST_SOURCES = 50
"""The most sources that are listed with their bytes; `data/corpus.html` sums up the others."""


def main() -> None:
    params = read_section("collect", CollectParams)
    require_locked(*(name for source in params.sources for name in source.libraries))
    noticed: list[str] = []
    if inputs := inputs_of_this_stage():
        places = [place for source in params.sources for place in source.places]
        noticed = [place for place in places if "://" in place and place in inputs.deps]
        for line in unnoticed(places, inputs):
            print(line, flush=True)
    before = versions(noticed)
    taken, seen = Taken(), SeenFiles()
    with atomic_folder(DOCUMENTS) as folder:
        write_documents(folder, gather(params, taken, seen), params.shard_bytes)
        if not taken.documents:
            raise UserError(f"collect: the corpus is empty: {reasons(taken)}")
    identity = corpus_id(shard_paths(DOCUMENTS))
    # DVC asks for the versions only now, and would record a new one with the old text.
    after = versions(noticed)
    if changed := sorted(url for url in {*before, *after} if before.get(url) != after.get(url)):
        raise InputsChangedError(f"collect: {changed[0]} changed while it was collected: run the same command again")
    write_json(REPORTS / "collect.json", summary(taken, identity))
    atomic_write(LEFT_OUT_TABLE, left_out_table(taken))
    seen.save()
    for cache in (CACHE_NAME, DOWNLOADS):
        drop_unused(cache)
    forget_unfinished()
    counts = f"{taken.documents.total():,} documents, {taken.total_bytes:,} bytes"
    print(f"collected {counts}; left out {taken.reasons.total():,}", *misplaced(taken), sep="\n")


def unnoticed(places: Sequence[str], inputs: Inputs) -> list[str]:
    """A line about the URLs, files and folders of sources that are not among the deps of the stage."""
    urls = [place for place in places if "://" in place and place not in inputs.deps]
    paths = [before_wildcards(place) for place in places if "://" not in place]
    missing = [*urls, *dict.fromkeys(str(path) for path in paths if not inputs.lists(path))]
    if not missing:
        return []
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return [
        f"note: params.yaml: collect.sources: {missing[0]}{more}: not among the deps of {inputs.stage} in dvc.yaml, "
        "so DVC will not notice a change: add it there (not a URL with wildcards), or run the stage with --force"
    ]


def summary(taken: Taken, identity: str) -> dict[str, Any]:
    """The metrics of `reports/collect.json`."""
    largest = sorted(taken.bytes.items(), key=lambda item: (-item[1], item[0]))[:LARGEST_SOURCES]
    return {
        "corpus_id": identity,
        "documents": taken.documents.total(),
        "bytes": taken.total_bytes,
        "sources": len(taken.documents),
        "left_out": dict(taken.reasons),
        "bytes_per_source": dict(largest),
    }


def misplaced(taken: Taken) -> list[str]:
    """A line for each notable reason, such as a kind of file that another kind of source would have read."""
    notable = (reason for kind in source_kinds() for reason in kind.notable)
    return [f"left out {count:,}: {reason}" for reason in notable if (count := taken.reasons[reason])]


def reasons(taken: Taken) -> str:
    """Why nothing is left, in words."""
    if not taken.reasons:
        return "the sources hold no text"
    counts = ", ".join(f"{reason}: {count}" for reason, count in taken.reasons.most_common())
    return f"all {taken.reasons.total()} texts were left out ({counts})"


def left_out_table(taken: Taken) -> str:
    """What was left out, by source and path, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["source", "path", "reason"])
    writer.writerows(sorted(taken.left_out))
    return text.getvalue()


if __name__ == "__main__":
    run_stage(main)
