"""Sources -> documents: what is taken, what is left out and why: `python -m stages.collect`."""

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from license_expression import Licensing

from stages.collect.find import LINK, NOT_HASHED
from stages.collect.params import CollectParams
from stages.collect.shards import write_documents
from stages.collect.source_kinds import TOO_LARGE, WITH_REMEDY, SourceItem, SourcePart
from stages.collect.sources.files import ARCHIVE
from stages.formats.documents import DOCUMENTS, Document, corpus_id, document_id, shard_paths, text_size
from stages.formats.opening import NOT_UTF8, check_text, to_utf8
from stages.formats.reports import REPORTS, write_json
from stages.runtime.atomic import atomic_folder, atomic_write
from stages.runtime.cache import drop_unused
from stages.runtime.errors import UserError, visible
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage
from stages.runtime.stage_code import require_locked
from stages.runtime.workers import Progress

LEFT_OUT_TABLE = Path("data/left_out.csv")

MAX_NAMED_SOURCES = 50
"""The most sources that are listed with their bytes; `data/corpus.html` sums up the others."""

MAX_SHOWN_NOTES = 10
"""The most lines about single files that a run prints."""

LICENSING = Licensing()

MAX_NAMED_TEXTS = 100_000
"""The most left out texts that are named in the report; the others are counted."""


def main() -> None:
    params = read_section("collect", CollectParams)
    require_locked(*(name for source in params.sources for name in source.libraries))
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
    write_json(REPORTS / "collect.json", collect_metrics(taken, corpus_id(shard_paths(DOCUMENTS))))
    atomic_write(LEFT_OUT_TABLE, left_out_table(taken))
    drop_unused()
    counts = f"{taken.documents.total():,} documents, {taken.total_bytes:,} bytes"
    left_out = f"left out {taken.reasons.total():,} ({LEFT_OUT_TABLE})"
    print(f"collected {counts}; {left_out}", *remarks(taken, notes), sep="\n")


@dataclass(slots=True)
class Taken:
    """What the corpus takes, by source, and what it leaves out, counted while the documents pass."""

    documents: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    """Source -> bytes of text."""
    total_bytes: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Reason -> texts left out."""
    left_out: list[tuple[str, str, str]] = field(default_factory=list)
    """Source, path and reason of the first of them."""
    not_utf8_bytes: int = 0
    """Bytes of the contents that are not UTF-8."""
    not_utf8_example: str = ""
    not_utf8_remedy: str = ""
    """The command that may convert the example."""

    def leave_out(self, item: SourceItem | Document, reason: str) -> None:
        """Count a text that is left out, and name it while there is room."""
        self.reasons[reason] += 1
        if len(self.left_out) < MAX_NAMED_TEXTS:
            self.left_out.append((item.source, item.path, reason))


def gather(params: CollectParams, taken: Taken) -> Iterator[Document]:
    """Every document of every source, within the limits; `taken` counts them."""
    progress = Progress("collect", "documents")
    for source in params.sources:
        for part in source.parts(params.max_document_bytes):
            for document in documents_taken(part, params, taken):
                size = document.size
                if params.max_bytes is not None and taken.total_bytes + size > params.max_bytes:
                    taken.leave_out(document, "after collect.max_bytes was reached")
                    return
                taken.documents[document.source] += 1
                taken.bytes[document.source] += size
                taken.total_bytes += size
                progress.advance(lambda: f"{taken.total_bytes / 1e6:,.0f} MB of text")
                yield document


def documents_taken(part: SourcePart, params: CollectParams, taken: Taken) -> Iterator[Document]:
    """The documents of a part up to the first that does not fit; the rest is counted with its reason."""
    total = 0
    for item in part.items:
        found = examine(item, part.share, params)
        if isinstance(found, str):
            taken.leave_out(item, found)
            if found == NOT_UTF8 and isinstance(item.content, bytes):
                taken.not_utf8_bytes += len(item.content)
                if not taken.not_utf8_example:
                    taken.not_utf8_example = item.path
                    taken.not_utf8_remedy = to_utf8(item.content)
            continue
        if part.max_bytes is not None:
            total += found.size
            if total > part.max_bytes:
                taken.leave_out(item, "after the source's limit of bytes was reached")
                return
        yield found


def examine(item: SourceItem, share: float, params: CollectParams) -> Document | str:
    """An item as a document, or why it is left out."""
    if item.reason:
        return item.reason
    if not (is_allowed(item.license, params.licenses) if item.license else params.unlicensed):
        return f"license not allowed: {item.license or 'unknown'}"
    text, flaw = check_text(item.content)
    if flaw := flaw or (TOO_LARGE if text_size(text) > params.max_document_bytes else ""):
        return flaw
    identifier = document_id(text)
    if int(identifier[-16:], 16) >= share * 2**64:  # a draw that depends on the content alone
        return "not in the source's share"
    return Document(identifier, item.source, item.revision, item.path, item.license, text)


@cache
def _parsed(expression: str) -> Any:
    try:
        return LICENSING.parse(expression)
    except Exception:  # the library raises bare ones besides its own
        return None


def is_allowed(expression: str, allowed: Collection[str]) -> bool:
    """Whether an SPDX expression can be met with allowed licenses alone.

    `A OR B` needs one of them, `A AND B` both; `A WITH exception` passes as A (an exception only adds permissions)
    or if it is allowed by its full name. Anything that is no expression is not allowed.
    """
    parsed = _parsed(expression)
    return parsed is not None and _is_met(parsed, allowed)


def _is_met(node: Any, allowed: Collection[str]) -> bool:
    if isinstance(node, LICENSING.OR):
        return any(_is_met(part, allowed) for part in node.args)
    if isinstance(node, LICENSING.AND):
        return all(_is_met(part, allowed) for part in node.args)
    base = getattr(node, "license_symbol", node)
    return node.render() in allowed or base.render() in allowed


def collect_metrics(taken: Taken, identity: str) -> dict[str, Any]:
    """The metrics of `reports/collect.json`."""
    largest = sorted(taken.bytes.items(), key=lambda item: (-item[1], item[0]))[:MAX_NAMED_SOURCES]
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
            f"WARNING: left out {count:,} files, parts or rows that are not UTF-8 ({share}), "
            f"such as {visible(taken.not_utf8_example)}; if they are text, convert them: `{taken.not_utf8_remedy}`"
        )
    named = dict.fromkeys(WITH_REMEDY, "WARNING: ") | dict.fromkeys((ARCHIVE, LINK, NOT_HASHED), "")
    lines += [f"{mark}left out {n:,}: {reason}" for reason, mark in named.items() if (n := taken.reasons[reason])]
    alike: dict[str, list[str]] = {}
    for note in notes:
        alike.setdefault(note.partition(": ")[0].rpartition("/")[2], []).append(note)
    for first, *more in list(alike.values())[:MAX_SHOWN_NOTES]:
        others = f" (and {len(more):,} more of this name)" if more else ""
        lines.append(f"WARNING: {first}{others}")
    if len(alike) > MAX_SHOWN_NOTES:
        lines.append(f"and {len(alike) - MAX_SHOWN_NOTES:,} more such files")
    return lines


def reasons(taken: Taken) -> str:
    """Why nothing is left, in words."""
    if not taken.reasons:
        return "the sources hold no text"
    counts = ", ".join(f"{reason}: {count}" for reason, count in taken.reasons.most_common())
    return f"all {taken.reasons.total()} texts were left out ({counts})"


def left_out_table(taken: Taken) -> str:
    """The texts that were left out, by source and path, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["source", "path", "reason"])
    writer.writerows(sorted(taken.left_out))
    return text.getvalue()


if __name__ == "__main__":
    run_stage(main)
