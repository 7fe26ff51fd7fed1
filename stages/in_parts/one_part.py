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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from stages.formats.cleaning import LEDGER
from stages.formats.documents import CLEAN, DOCUMENTS, ORIGIN, read_shard, shard_paths, write_table
from stages.formats.model_folder import TOKENIZER, TOKENIZER_JSON
from stages.formats.parts import OPTION, WHO_ASKS, is_first
from stages.formats.reports import REPORTS
from stages.formats.splits import SPLITS, VALIDATION
from stages.formats.tokens import TOKENS
from stages.runtime.atomic import file_sha256
from stages.runtime.cache import LIMIT_VARIABLE, cache_key, cached, shard_sha256
from stages.runtime.entry import InputsChangedError, UserError
from stages.runtime.inputs import Inputs, inputs_of_this_stage, read_besides
from stages.runtime.section import read_params_file

PARTS = "parts"
"""The kind of the kept parts in the cache."""

FOLDERS = (LEDGER, CLEAN / VALIDATION, *(TOKENS / split for split in SPLITS))
"""What is kept of each part."""

CLEAN_REPORT, TOKENIZE_REPORT, TOKENIZER_REPORT = (
    REPORTS / f"{stage}.json" for stage in ("clean", "tokenize", "tokenizer")
)

COLLECTED = "collected.parquet"
"""In what is kept of a part: where each document that was collected comes from, with its id."""

BETWEEN_NAMES = "+"
"""Instead of `/` in the names of kept files: an entry of the cache has no folders."""

SECTIONS = ("clean", "tokenizer", "tokenize")
"""Of params.yaml: what a part depends on besides its documents."""


def run_on_part(module: str, part: str = "") -> None:
    """Run a stage. Ends this process as the stage ended where it failed, which has said why."""
    # Its shards are of no use to the next part, and there is no room for them.
    environment = {LIMIT_VARIABLE: "0"} | os.environ | {WHO_ASKS: "stages.in_parts"}
    _run([module, *([OPTION, part] if part else [])], env=environment)


def _run(module: list[str], **options: Any) -> str:
    # Should this process be killed, who takes its lock next waits for the stage too.
    ended = subprocess.run([sys.executable, "-m", *module], close_fds=False, check=False, text=True, **options)
    if code := ended.returncode:
        raise SystemExit(code if code > 0 else 128 - code)
    return ended.stdout or ""


@dataclass(frozen=True)
class PartInputs:
    """What the parts are made from besides their documents, as it was when the run began."""

    params: Mapping[str, Any]
    """Of params.yaml, all of it."""
    facts: tuple[str, ...]
    """For a key: the sections that count, and each file that they name with its hash."""
    of_stage: Inputs | None
    """What dvc.yaml lists, the code among it; None where it has no such stage."""
    versions: str
    """What servers say of the URLs among that."""

    @classmethod
    def observe(cls) -> Self:
        """Raises UserError for a kind of tokenizer that cannot be made from one part."""
        params = read_params_file()
        if (params.get("tokenizer") or {}).get("kind") == "characters":
            raise UserError(
                "in_parts: tokenizer.kind = characters: the characters of all parts would have to be known before the "
                "first one is encoded; use bpe or existing"
            )
        of_stage = inputs_of_this_stage()
        return cls(params, _facts_of(params), of_stage, _versions(params, of_stage))

    def require_unchanged(self) -> None:
        """Raise InputsChangedError where something differs by now: the stages of a part have read it anew."""
        if self.of_stage is not None:
            self.of_stage.require_unchanged()
        if _facts_of(read_params_file()) != self.facts:
            raise InputsChangedError(
                "in_parts: params.yaml, or a file that it names, changed meanwhile; the part is not kept: run the same "
                "command again"
            )

    def require_unchanged_urls(self) -> None:
        """Raise InputsChangedError where a server has another version of a URL than when the run began.

        DVC asks for the versions only now, and would record a new one with the old text.
        """
        if _versions(self.params, self.of_stage) != self.versions:
            raise InputsChangedError(
                "in_parts: a URL of the sources changed meanwhile: run the same command again, which keeps the parts "
                "that are as before"
            )


def _versions(params: Mapping[str, Any], of_stage: Inputs | None) -> str:
    """What servers say now, as the stage asks them that reads the sources."""
    listed = of_stage.deps if of_stage else ()
    urls = sorted(text for text in set(_texts(params.get("collect"))).intersection(listed) if "://" in text)
    return _run(["stages.collect.remote", *urls], stdout=subprocess.PIPE) if urls else ""


def part_entry(part: str, inputs: PartInputs) -> Path:
    """The folder with what is kept of the part whose documents were collected: computed, unless it is known."""
    makes_tokenizer = is_first(part)
    key = cache_key(
        part,
        *inputs.facts,
        *(f"{shard.name} {shard_sha256(shard)}" for shard in shard_paths(DOCUMENTS)),
        *([] if makes_tokenizer else [file_sha256(TOKENIZER / TOKENIZER_JSON)]),
    )
    return cached(PARTS, key, partial(_write_part, part, makes_tokenizer, inputs))


def _facts_of(params: Mapping[str, Any]) -> tuple[str, ...]:
    sections = {name: params.get(name) for name in SECTIONS}
    return (json.dumps(sections, sort_keys=True), *(f"{path} {file_sha256(path)}" for path in _named_files(params)))


def _named_files(params: Mapping[str, Any]) -> Iterator[Path]:
    """The files that parameters name: models, evaluation sets, a tokenizer."""
    clean = {key: value for key, value in (params.get("clean") or {}).items() if key != "split"}
    for text in sorted(set(_texts(clean))):
        with suppress(OSError, ValueError):  # a text that can be no path
            if Path(text).is_file():
                read_besides("clean", Path(text))
                yield Path(text)
    tokenizer = (params.get("tokenizer") or {}).get("folder")
    if tokenizer and Path(tokenizer).is_dir():
        read_besides("tokenizer.folder", Path(tokenizer))
        yield from sorted(file for file in Path(tokenizer).rglob("*") if file.is_file())


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def _write_part(part: str, makes_tokenizer: bool, inputs: PartInputs, folder: Path) -> None:
    run_on_part("stages.clean", part)
    if makes_tokenizer:
        run_on_part("stages.tokenizer")
    run_on_part("stages.tokenize", part)
    inputs.require_unchanged()
    # Cleaning gives documents that it masks other ids.
    collected = [read_shard(shard, ORIGIN) for shard in shard_paths(DOCUMENTS)]
    write_table(folder / COLLECTED, pa.concat_tables(collected).combine_chunks())
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
