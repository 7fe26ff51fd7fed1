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
from stages.collect.source_kinds import TOO_LARGE, Reading, SourceItem
from stages.runtime.cache import CACHE
from stages.runtime.workers import map_shards, on_cluster

ItemsOf = Callable[[LocatedFile], Iterator[SourceItem]]

FILES_AT_ONCE = 500
"""Text files that a worker checks in one call."""

DAMAGED = "damaged, cut off, or not compressed as its name says"


def checks_of(files: Sequence[LocatedFile], reading: Reading) -> Iterator[ContentCheck | str]:
    """The check of each file of this machine, without its text, or why it cannot be read.

    Those that have not changed since an earlier run are not read.
    """

    def known(file: LocatedFile) -> ContentCheck | None:
        return reading.seen.known(file.name, file.state) if file.state is not None else None

    new = [file.name for file in files if known(file) is None]
    batches = [new[start : start + FILES_AT_ONCE] for start in range(0, len(new), FILES_AT_ONCE)]
    checks = chain.from_iterable(map_shards(partial(_check_files, reading.max_document_bytes), batches))
    for file in files:
        found: ContentCheck | str | None = known(file)
        if found is None:
            found = next(checks)
            if file.state is not None and not isinstance(found, str):
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
            unchecked = None if item.reason or isinstance(item.content, ContentCheck) else item.content
            checked = item if unchecked is None else replace(item, content=check_content(unchecked))
            pickle.dump(checked, found, protocol=pickle.HIGHEST_PROTOCOL)
    return Path(name)


def _items_in(found: Path) -> Iterator[SourceItem]:
    with found.open("rb") as items:
        while items.peek(1):
            yield pickle.load(items)
