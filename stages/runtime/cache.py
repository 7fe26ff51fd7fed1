"""The one cache of stages/: results, stored under everything that they were computed from.

It is in the ignored folder `.parrotflow/cache/KIND`, outside DVC's outs: deleting it costs only time. An entry of
`cached` and `map_cached` is a folder of files, whole or not there, so an edit of one document costs one shard.

Files are copied out of it, so editing a result cannot change the cache. A damaged entry is computed again. A file with
the size, time of change and inode of its record counts as undamaged; only others are read and compared by checksum.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from multiprocessing import parent_process
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Any, TypeVar

from stages.runtime.atomic import atomic_write, file_sha256, file_state, remembered_sha256
from stages.runtime.errors import UserError
from stages.runtime.stage_code import computing_sha256
from stages.runtime.workers import counted, map_shards

CachedItem = TypeVar("CachedItem")

CACHE = Path(".parrotflow/cache")

SUMS = "sha256.json"
"""In each entry: name of each other file -> [sha256, size, time of change, inode]."""

LIMIT_VARIABLE = "PARROTFLOW_SHARD_CACHE_GB"

LEFT_BEHIND_SECONDS = 24 * 3600
"""A half-written entry that is older was left by a kill."""


def cache_key(*parts: str) -> str:
    """One name for everything that a result depends on, in the order given."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def cached(kind: str, key: str, compute: Callable[[Path], None]) -> Path:
    """The folder with the files that `compute(folder)` writes, computed unless the cache has it.

    `key` changes with the data that is computed from; the code of the stage that `compute` belongs to counts by itself.
    """
    entry = _entry(kind, compute, key)
    if not _is_known(entry):
        _fill(compute, (entry,))
    os.utime(entry)
    return entry


def map_cached(
    kind: str,
    items: Sequence[CachedItem],
    key_of: Callable[[CachedItem], str],
    compute: Callable[[CachedItem, Path], None],
    threads_each: int = 1,
) -> list[Path]:
    """For each item the folder with the files that `compute(item, folder)` writes; keys as for `cached`.

    Only what the cache does not know is computed, by the workers of `map_shards`, in the order of the items.
    """
    entries = [_entry(kind, compute, key_of(item)) for item in items]
    is_known = map_shards(_is_known, entries)
    missing = {entry: item for entry, item, known in zip(entries, items, is_known, strict=True) if not known}
    filled = map_shards(partial(_fill, compute), list(missing.items()), threads_each)
    for _ in counted(filled, kind, "shards", len(missing)):
        pass
    for entry in entries:
        os.utime(entry)
    return entries


def _fill(compute: Callable[..., None], entry_and_item: tuple[Any, ...]) -> None:
    """Compute an entry, given its folder and what `compute` takes before its own."""
    entry, *item = entry_and_item
    # Two workers may compute the same entry at once; each has a folder of its own, and the same bytes.
    entry.parent.mkdir(parents=True, exist_ok=True)
    own = Path(mkdtemp(prefix=f".{entry.name}.", dir=entry.parent))
    try:
        compute(*item, own)
        (own / SUMS).write_text(json.dumps(_sums(own, {})), encoding="utf-8")
        own.rename(entry)
    except OSError:
        if not _is_known(entry):  # else the other one was faster
            raise
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _entry(kind: str, compute: Callable[..., None], data_key: str) -> Path:
    while isinstance(compute, partial):
        compute = compute.func
    return cache_folder(kind, cache_key(computing_sha256(compute.__module__), data_key))


def cache_folder(kind: str, key: str) -> Path:
    """The folder of the entry with this key."""
    if parent_process() is None:  # a worker lives as long as its parent, which could then never evict anything
        in_use()
    return CACHE / kind / key[:2] / key


def in_use() -> IO[str]:
    """The cache's lock, shared by all processes that use it, each until it ends: so none evicts what another reads.

    If only its workers use the cache, a process calls this for them.
    """
    return _lock(CACHE.absolute())


@cache
def _lock(folder: Path) -> IO[str]:
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / "lock").open("a", encoding="utf-8")
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def _is_known(entry: Path) -> bool:
    """True if the entry exists and its checksums match. A damaged entry is removed."""
    if not entry.is_dir():
        return False
    try:
        recorded = json.loads((entry / SUMS).read_bytes())
        found = _sums(entry, recorded)
        if [(name, sums[0]) for name, sums in found.items()] == [(name, sums[0]) for name, sums in recorded.items()]:
            if found != recorded:  # a copy of the cache, for example
                atomic_write(entry / SUMS, json.dumps(found))
            return True
    except (OSError, ValueError):
        pass
    print(f"{entry}: damaged or from an earlier version; computing it again", flush=True)
    shutil.rmtree(entry, ignore_errors=True)
    return False


def _sums(entry: Path, recorded: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The content of `SUMS` for the files as they are now. Only files that differ from their record are read."""
    found = {}
    for file in sorted(file for file in entry.rglob("*") if file.is_file() and file != entry / SUMS):
        name, state = file.relative_to(entry).as_posix(), [*file_state(file.stat())]
        sha256, *known = recorded.get(name, [""])
        found[name] = [sha256 if known == state else file_sha256(file), *state]
    return found


def hash_in_workers(files: Sequence[Path]) -> None:
    """Hash files by the workers of `map_shards` if that is faster, for `known_sha256` to remember."""
    states = [(file.absolute(), *file_state(file.stat())) for file in files]
    remembered_sha256.update(zip(states, map_shards(file_sha256, files), strict=True))


def drop_unused() -> None:
    """Delete what kills have left and, beyond `PARROTFLOW_SHARD_CACHE_GB` (default 50) in all, what was unused for
    longest. While another process uses the cache nothing is deleted: a later run does it.

    Raises UserError for a variable that is not a number.
    """
    limit = os.environ.get(LIMIT_VARIABLE) or "50"
    try:
        limit_bytes = float(limit) * 1e9
    except ValueError:
        raise UserError(f"{LIMIT_VARIABLE}={limit}: expected a number of gigabytes") from None
    try:
        fcntl.flock(in_use(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        total = 0
        entries = [(path.stat().st_mtime, path) for path in CACHE.glob("*/??/*")]
        for used, entry in sorted(entries, reverse=True):
            if is_partial := entry.name.startswith("."):
                is_left = time.time() - used > LEFT_BEHIND_SECONDS
            else:
                total += sum(file.stat().st_size for file in entry.rglob("*") if file.is_file())
            if is_left if is_partial else total > limit_bytes:
                shutil.rmtree(entry)
    except BlockingIOError:
        return
    finally:
        fcntl.flock(in_use(), fcntl.LOCK_SH)
