"""Sources -> token store, part by part, where there is no room for the whole text: `python -m stages.in_parts 8`.

Takes the place of the stages from collect to tokenize. Of one part after the other the documents are collected, cleaned
and encoded; then all but its tokens, its validation documents and its ledger is deleted. A part whose documents are as
before is not computed again, also after a kill.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages.formats.cleaning import CORPUS_PAGE, LEDGER
from stages.formats.documents import CLEAN, DOCUMENTS, corpus_id, read_table, shard_paths
from stages.formats.model_folder import TOKENIZER
from stages.formats.parts import bits_of_parts
from stages.formats.reports import REPORTS, read_json, write_json
from stages.formats.splits import SPLITS, TRAIN, VALIDATION
from stages.formats.tokens import STORE_MANIFEST, TOKENS, Manifest, joined
from stages.in_parts.one_part import (
    CLEAN_REPORT,
    COLLECTED,
    FOLDERS,
    PARTS,
    TOKENIZE_REPORT,
    TOKENIZER_REPORT,
    PartInputs,
    file_of,
    files_of,
    link,
    part_entry,
    run_on_part,
)
from stages.runtime.atomic import atomic_folder, atomic_write
from stages.runtime.cache import keep_entries
from stages.runtime.entry import InputsChangedError, UserError, parsed_whole_number, private_state_dir, run_stage

LOCK = "in_parts.lock"

COLLECT_REPORT = REPORTS / "collect.json"


def main() -> None:
    given = " ".join(sys.argv[1:])
    parts = bits_of_parts(parsed_whole_number(f"in_parts {given}", given))
    inputs = PartInputs.observe()
    with run_lock():
        entries: list[Path] = []
        reports: list[dict[str, Any]] = []
        for number, part in enumerate(parts, start=1):
            clear()
            print(f"part {number} of {len(parts)}", flush=True)
            run_on_part("stages.collect", part)
            reports.append(read_json(COLLECT_REPORT))
            if reports[-1] != reports[0]:
                raise InputsChangedError(
                    "in_parts: the sources changed meanwhile, so the parts are of different corpora: run the same "
                    "command again, which keeps those that are as before"
                )
            if shard_paths(DOCUMENTS):
                entries.append(part_entry(part, inputs))
            if not entries:
                raise UserError(f"in_parts: part 1 of {len(parts)} has no documents: too small a corpus for parts")
            if number == 1:
                assemble_tokenizer(entries[0])
        clear()
        stores = assemble(entries, inputs.params)
        keep_entries(PARTS, entries)
        inputs.require_unchanged_urls()
    print(*(f"{split}: {store.tokens:,} tokens of {len(parts)} parts" for split, store in stores.items()), sep="\n")


@contextmanager
def run_lock() -> Iterator[None]:
    """Wait until no other run in this project writes its parts, nor a stage that one which was killed had begun."""
    descriptor = os.open(private_state_dir() / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another run in parts is using this folder; waiting for its end", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.set_inheritable(descriptor, True)  # the lock ends with the last process that has it
        yield
    finally:
        os.close(descriptor)


def clear() -> None:
    """Delete the text and tokens of a part, the table about one part alone, and a page about an earlier corpus."""
    for folder in (DOCUMENTS, CLEAN, TOKENS):
        shutil.rmtree(folder, ignore_errors=True)
    for about_one in (REPORTS / "clean_drops.csv", CORPUS_PAGE):
        about_one.unlink(missing_ok=True)


def assemble_tokenizer(first: Path) -> None:
    """Bring the tokenizer, which the first part made, to its place."""
    with atomic_folder(TOKENIZER) as folder:
        for name, file in files_of(first, TOKENIZER).items():
            shutil.copyfile(file, folder / name)
    atomic_write(TOKENIZER_REPORT, file_of(first, TOKENIZER_REPORT).read_bytes())


def assemble(parts: Sequence[Path], params: Mapping[str, Any]) -> dict[str, Manifest]:
    """Write what the stages would have written for the whole corpus; the manifest of each split's token store.

    Raises UserError where a split has no documents, or a source that is to be held out is not in the corpus.
    """
    stores = {split: joined([_manifest(part, split) for part in parts]) for split in SPLITS}
    for split, manifest in stores.items():
        if not manifest.documents:
            raise UserError(f"clean: the {split} split is empty in all parts: change clean.split in params.yaml")
    sources = _sources(parts)
    _require_held_out(sources, params)
    for place in FOLDERS:
        with atomic_folder(place) as folder:
            for part in parts:
                for name, file in files_of(part, place).items():
                    if name != STORE_MANIFEST:
                        link(file, folder / name)
            if place.parent == TOKENS:
                (folder / STORE_MANIFEST).write_text(stores[place.name].to_json(), encoding="utf-8")
    write_json(CLEAN_REPORT, _clean_report(parts, sources))
    # Of the two engines that one which checks the other, if a part fell back to it: its name is the greater.
    engine = max(read_json(file_of(part, TOKENIZE_REPORT))["engine"] for part in parts)
    write_json(TOKENIZE_REPORT, {"engine": engine} | {split: store.summary for split, store in stores.items()})
    # Each part has read all sources, and reports on them; but for what the corpus is called by its documents.
    whole = {"corpus_id": corpus_id(part / COLLECTED for part in parts)}
    write_json(COLLECT_REPORT, read_json(COLLECT_REPORT) | whole)
    return stores


def _manifest(part: Path, split: str) -> Manifest:
    text = file_of(part, TOKENS / split / STORE_MANIFEST).read_text(encoding="utf-8")
    return Manifest.from_json(text)


def _sources(parts: Sequence[Path]) -> dict[str, set[str]]:
    """The sources by where their documents went: a split, or empty where they were dropped."""
    sources: dict[str, set[str]] = {}
    for shard in (file for part in parts for file in files_of(part, LEDGER).values()):
        for row in read_table(shard, ["source", "split"]).to_pylist():
            sources.setdefault(row["split"], set()).add(row["source"])
    return sources


def _require_held_out(sources: Mapping[str, set[str]], params: Mapping[str, Any]) -> None:
    split = params["clean"]["split"]
    known = set().union(*sources.values())
    if split["by"] == "source" and (unknown := sorted(set(split["validation_sources"]) - known)):
        raise UserError(
            f"params.yaml: clean.split.validation_sources: no source `{unknown[0]}` in the corpus; "
            f"it has {', '.join(sorted(known)[:30])}"
        )


def _clean_report(parts: Sequence[Path], sources: Mapping[str, set[str]]) -> dict[str, Any]:
    """The report about all parts. A source may be in several of them, an evaluation item is searched for in all."""
    reports = [read_json(file_of(part, CLEAN_REPORT)) for part in parts]
    report = summed(reports)
    if "evaluation_items" in report:
        report["evaluation_items"] = reports[0]["evaluation_items"]
    for split in SPLITS:
        report[split]["sources"] = len(sources[split])
    report["kept"]["sources"] = len(sources[TRAIN] | sources[VALIDATION])
    return report


def summed(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of numbers by name, also of nested ones; a name that one does not have counts as nothing there."""
    names = dict.fromkeys(name for report in reports for name in report)
    values = {name: [report[name] for report in reports if name in report] for name in names}
    return {name: summed(found) if isinstance(found[0], Mapping) else sum(found) for name, found in values.items()}


if __name__ == "__main__":
    run_stage(main)
