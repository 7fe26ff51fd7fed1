"""Reads the files of sources by workers: processes of this machine, or a Ray cluster.

Text files, of which there may be very many, are checked in batches; nothing but the checks comes back, and the text is
read again where it is written. Files with many documents are read on a cluster, a file a task. What a task finds goes
to a file of its own in the project's folder, which all nodes see, and is read from there in the order of the sources:
limits and counts depend on that order.
"""

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp

from stages.collect.content_check import ContentCheck, can_be_found, check_content
from stages.collect.located import BROKEN, LocatedFile, by_ending
from stages.collect.remote import ahead
from stages.collect.source_kinds import TOO_LARGE, FileSource, Reading, SourceItem
from stages.runtime.cache import CACHE
from stages.runtime.workers import map_shards, on_cluster

ItemsOf = Callable[[LocatedFile], Iterator[SourceItem]]

FILES_AT_ONCE = 500
"""Text files that a worker checks in one call."""

DAMAGED = "damaged, cut off, or not compressed as its name says"


def text_items(
    source: FileSource,
    files: Sequence[LocatedFile],
    reading: Reading,
    no_text: Callable[[str], str],
    is_apart: Callable[[LocatedFile], bool] = lambda file: False,
) -> Iterator[SourceItem]:
    """The items of text files, and of those that `items_of` reads: files at URLs, and any that `is_apart`.

    `no_text` says of a file's name why it is left out; empty where it is not.
    """
    limit = reading.max_document_bytes

    def why_left_out(file: LocatedFile) -> str:
        is_large = file.size is not None and file.size > limit and not is_apart(file)
        return file.flaw or no_text(file.name) or (TOO_LARGE if is_large else "")

    files = [replace(file, flaw=why_left_out(file)) for file in files]
    apart = {file.name for file in files if file.state is None or is_apart(file)}
    checks = _checks_of([file for file in files if file.name not in apart and not file.flaw], reading)
    for file in ahead(files):
        if file.flaw:
            yield source.left_out(file.name, file.flaw)
        elif file.name in apart:
            yield from source.items_of(file, limit)
        else:
            found = next(checks)
            yield source.left_out(file.name, found) if isinstance(found, str) else source.item(file.name, found)


def _checks_of(files: Sequence[LocatedFile], reading: Reading) -> Iterator[ContentCheck | str]:
    """The check of each file, without its text, or why it cannot be read. An unchanged file is not read."""
    known = [reading.seen.known(file.name, file.state) for file in files]
    new = [file.name for file, check in zip(files, known, strict=True) if check is None]
    batches = [new[start : start + FILES_AT_ONCE] for start in range(0, len(new), FILES_AT_ONCE)]
    checks = chain.from_iterable(map_shards(partial(_check_files, reading.max_document_bytes), batches))
    for file, check in zip(files, known, strict=True):
        found = check or next(checks)
        if check is None and file.state is not None and isinstance(found, ContentCheck):
            reading.seen.remember(file.name, file.state, found)
        yield found


def _check_files(limit: int, names: Sequence[str]) -> list[ContentCheck | str]:
    return [_check_file(name, limit) for name in names]


def _check_file(name: str, limit: int) -> ContentCheck | str:
    try:
        with Path(name).open("rb") as stream, by_ending(name, stream) as text:
            content = text.read(limit + 1)
    except BROKEN as error:
        return f"unreadable: {getattr(error, 'strerror', None) or DAMAGED}"
    if len(content) > limit:
        return TOO_LARGE
    found = check_content(content)
    return replace(found, text=None) if can_be_found(name) else found


def read_files(files: Sequence[LocatedFile], items_of: ItemsOf) -> Iterator[SourceItem]:
    """The items of files, in the order of the files. Those of web servers are downloaded, and so read, here alone."""
    if not on_cluster() or any(file.download for file in files):
        for file in ahead(files):
            yield from items_of(file)
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".reading-", dir=CACHE) as folder:
        for found in map_shards(partial(_write_items, items_of, Path(folder)), files):
            yield from _items_in(found)
            found.unlink()


def _write_items(items_of: ItemsOf, folder: Path, file: LocatedFile) -> Path:
    """Where the items of a file are. A name of its own: a task that is repeated may still run somewhere."""
    descriptor, name = mkstemp(dir=folder)
    with os.fdopen(descriptor, "wb") as found:
        for item in items_of(file):
            if item.reason or isinstance(item.content, ContentCheck):
                pickle.dump(item, found, protocol=pickle.HIGHEST_PROTOCOL)
            else:
                checked = replace(item, content=check_content(item.content))
                pickle.dump(checked, found, protocol=pickle.HIGHEST_PROTOCOL)
    return Path(name)


def _items_in(found: Path) -> Iterator[SourceItem]:
    with found.open("rb") as items:
        while items.peek(1):
            yield pickle.load(items)
