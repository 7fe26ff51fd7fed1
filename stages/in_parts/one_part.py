"""One part of the corpus, cleaned and encoded; what is kept of it lies in the cache of stages, by what it was made of.

The files are links to those that the stages wrote, so that keeping them takes no room.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from stages.formats.cleaning import LEDGER
from stages.formats.documents import CLEAN, DOCUMENTS, shard_paths
from stages.formats.model_folder import TOKENIZER, TOKENIZER_JSON
from stages.formats.parts import OPTION
from stages.formats.reports import REPORTS
from stages.formats.splits import SPLITS, VALIDATION
from stages.formats.tokens import TOKENS
from stages.runtime.cache import LIMIT_VARIABLE, cache_key, cached, shard_sha256
from stages.runtime.hashes import file_sha256
from stages.runtime.inputs import read_besides

PARTS = "parts"
"""The kind of the kept parts in the cache."""

FOLDERS = (LEDGER, CLEAN / VALIDATION, *(TOKENS / split for split in SPLITS))
"""What is kept of each part."""

CLEAN_REPORT, TOKENIZE_REPORT, TOKENIZER_REPORT = (
    REPORTS / f"{stage}.json" for stage in ("clean", "tokenize", "tokenizer")
)

BETWEEN_NAMES = "+"
"""Instead of `/` in the names of kept files: an entry of the cache has no folders."""

SECTIONS = ("clean", "tokenizer", "tokenize")
"""Of params.yaml: what a part depends on besides its documents."""


def run_on_part(module: str, part: str = "") -> None:
    """Run a stage. Ends this process as the stage ended where it failed, which has said why."""
    # Its shards are of no use to the next part, and there is no room for them.
    environment = {LIMIT_VARIABLE: "0"} | os.environ
    command = [sys.executable, "-m", module, *([OPTION, part] if part else [])]
    # Should this process be killed, who takes its lock next waits for the stage too.
    ended = subprocess.run(command, env=environment, close_fds=False, check=False).returncode
    if ended:
        raise SystemExit(ended if ended > 0 else 128 - ended)


def part_entry(part: str, params: Mapping[str, Any]) -> Path:
    """The folder with what is kept of the part whose documents were collected: computed, unless it is known."""
    makes_tokenizer = "1" not in part
    key = cache_key(
        part,
        json.dumps({name: params.get(name) for name in SECTIONS}, sort_keys=True),
        *(f"{path} {file_sha256(path)}" for path in named_files(params)),
        *(f"{shard.name} {shard_sha256(shard)}" for shard in shard_paths(DOCUMENTS)),
        *([] if makes_tokenizer else [file_sha256(TOKENIZER / TOKENIZER_JSON)]),
    )
    return cached(PARTS, key, partial(_write_part, part, makes_tokenizer))


def named_files(params: Mapping[str, Any]) -> Iterator[Path]:
    """The files that parameters name: models, evaluation sets, a tokenizer."""
    clean = {key: value for key, value in (params.get("clean") or {}).items() if key != "split"}
    for section, values in (("clean", clean), ("tokenizer", params.get("tokenizer"))):
        for text in sorted(set(_texts(values))):
            if text and (path := Path(text)).exists():
                read_besides(section, path)
                yield from sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def _write_part(part: str, makes_tokenizer: bool, folder: Path) -> None:
    run_on_part("stages.clean", part)
    if makes_tokenizer:
        run_on_part("stages.tokenizer")
    run_on_part("stages.tokenize", part)
    files = [file for place in FOLDERS for file in sorted(place.iterdir())] + [CLEAN_REPORT, TOKENIZE_REPORT]
    if makes_tokenizer:
        files += [*sorted(TOKENIZER.iterdir()), TOKENIZER_REPORT]
    for file in files:
        link(file, folder / file.as_posix().replace("/", BETWEEN_NAMES))


def link(file: Path, place: Path) -> None:
    """Give a file a second name, or copy it where that is on another disk, or the system has no links."""
    with suppress(OSError):
        os.link(file, place)
        return
    shutil.copyfile(file, place)


def files_of(entry: Path, place: Path) -> dict[str, Path]:
    """The kept files of a folder: their names -> where they are."""
    beginning = f"{place.as_posix()}/".replace("/", BETWEEN_NAMES)
    return {file.name.removeprefix(beginning): file for file in sorted(entry.glob(f"{beginning}*"))}


def file_of(entry: Path, place: Path) -> Path:
    """Where one kept file is."""
    return entry / place.as_posix().replace("/", BETWEEN_NAMES)
