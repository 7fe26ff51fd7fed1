"""Sources -> token store, part by part, where there is no room for the whole text: `python -m stages.in_parts 8`.

Takes the place of the stages from collect to tokenize. Of one part after the other the documents are collected, cleaned
and encoded; then all but its tokens, its validation documents and its ledger is deleted. A part whose documents are as
before is not computed again, also after a kill.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stages.formats.documents import CLEAN, DOCUMENTS, shard_paths
from stages.formats.parts import bits_of_parts
from stages.formats.reports import REPORTS
from stages.formats.tokens import TOKENS
from stages.in_parts.assemble import assemble, assemble_tokenizer
from stages.in_parts.one_part import PARTS, PartInputs, part_entry, run_on_part
from stages.runtime.cache import keep_entries
from stages.runtime.entry import UserError, parsed_whole_number, private_state_dir, run_stage

LOCK = "in_parts.lock"


def main() -> None:
    given = " ".join(sys.argv[1:])
    parts = bits_of_parts(parsed_whole_number(f"in_parts {given}", given))
    inputs = PartInputs.observe()
    with run_lock():
        entries: list[Path] = []
        for number, part in enumerate(parts, start=1):
            clear()
            print(f"part {number} of {len(parts)}", flush=True)
            run_on_part("stages.collect", part)
            if shard_paths(DOCUMENTS):
                entries.append(part_entry(part, inputs))
            if not entries:
                raise UserError(f"in_parts: part 1 of {len(parts)} has no documents: too small a corpus for parts")
            if number == 1:
                assemble_tokenizer(entries[0])
        clear()
        stores = assemble(entries, inputs.params)
        keep_entries(PARTS, entries)
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
    """Delete the text and tokens of a part, and the table that describes one part alone."""
    for folder in (DOCUMENTS, CLEAN, TOKENS):
        shutil.rmtree(folder, ignore_errors=True)
    (REPORTS / "clean_drops.csv").unlink(missing_ok=True)


if __name__ == "__main__":
    run_stage(main)
