"""Sources -> documents, and what was left out: `python -m stages.collect`."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.collect.find import NOT_HASHED, before_wildcards
from stages.collect.gather import NOT_UTF8, Taken, gather
from stages.collect.params import CollectParams
from stages.collect.shards import CACHE_NAME, write_documents
from stages.collect.sources.files import ARCHIVE
from stages.formats.documents import DOCUMENTS, corpus_id, shard_paths
from stages.formats.reports import REPORTS, write_json
from stages.runtime.atomic import atomic_folder, atomic_write
from stages.runtime.cache import drop_unused
from stages.runtime.entry import UserError, visible
from stages.runtime.section import read_section
from stages.runtime.stage import require_listed, run_stage
from stages.runtime.stage_code import require_locked

LEFT_OUT_TABLE = Path("data/left_out.csv")

LARGEST_SOURCES = 50
"""The most sources that are listed with their bytes; `data/corpus.html` sums up the others."""

NOTES_SHOWN = 10
"""The most lines about single files that a run prints."""


def main() -> None:
    params = read_section("collect", CollectParams)
    require_locked(*(name for source in params.sources for name in source.libraries))
    for place in (place for source in params.sources for place in source.places):
        if "://" not in place:
            require_listed("collect.sources", before_wildcards(place))
    if ".dvc/tmp/exps" in Path.cwd().as_posix():
        print(
            "note: `dvc exp run --temp` and `--queue` bring only files that git or DVC tracks: what git ignores below "
            "corpus/ is missing here (`git add -f`, or `dvc add`)",
            flush=True,
        )
    taken = Taken()
    with atomic_folder(DOCUMENTS) as folder:
        write_documents(folder, gather(params, taken), params.shard_bytes)
        notes = [note for source in params.sources for note in source.notes]
        if not taken.documents:
            raise UserError("\n".join([f"collect: the corpus is empty: {reasons(taken)}", *remarks(taken, notes)]))
    write_json(REPORTS / "collect.json", summary(taken, corpus_id(shard_paths(DOCUMENTS))))
    atomic_write(LEFT_OUT_TABLE, left_out_table(taken))
    drop_unused(CACHE_NAME)
    counts = f"{taken.documents.total():,} documents, {taken.total_bytes:,} bytes"
    print(f"collected {counts}; left out {taken.reasons.total():,}", *remarks(taken, notes), sep="\n")


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


def remarks(taken: Taken, notes: Sequence[str]) -> list[str]:
    """Lines about what was probably left out by mistake."""
    lines = []
    if count := taken.reasons[NOT_UTF8]:
        share = f"{taken.not_utf8_bytes:,} of {taken.total_bytes + taken.not_utf8_bytes:,} bytes"
        lines.append(
            f"WARNING: left out {count:,} files or rows that are not UTF-8 ({share}), "
            f"such as {visible(taken.not_utf8_example)}; if they are text: `iconv -f {taken.encoding} -t utf-8`"
        )
    lines += [f"left out {count:,}: {reason}" for reason in (ARCHIVE, NOT_HASHED) if (count := taken.reasons[reason])]
    alike: dict[str, list[str]] = {}
    for note in notes:
        alike.setdefault(note.partition(": ")[0].rpartition("/")[2], []).append(note)
    for first, *more in list(alike.values())[:NOTES_SHOWN]:
        lines.append(f"WARNING: {first}{f' (and {len(more):,} more of this name)' * bool(more)}")
    return lines + [f"and {len(alike) - NOTES_SHOWN:,} more such files"] * (len(alike) > NOTES_SHOWN)


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
