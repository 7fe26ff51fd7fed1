"""The cache of all stages: results, stored under a hash of everything that they were computed from.

It is in the ignored folder `.parrotflow/cache/KIND`, outside of DVC's outs, and deleting it costs only time. Entries of
`cached` and `map_cached` are folders of files, which appear atomically. An edit of one document costs one shard.

Files are copied out of the cache, so editing a result cannot change it. A damaged entry is computed again. A file whose
size, time of change and inode match its record counts as undamaged; others are compared by checksum.
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


def cache_key(*parts: str) -> str:
    """A hash of everything that a result depends on, in the given order."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def cached(kind: str, key: str, compute: Callable[[Path], None]) -> Path:
    """The folder with the files that `compute(folder)` writes, from the cache if it is there.

    `key` must cover the input data; the code of the stage of `compute` is added.
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
    """For each item the folder with the files that `compute(item, folder)` writes; keys as in `cached`.

    Missing entries are computed by the workers of `map_shards`, in the order of the items.
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
    """Compute an entry, given its folder and the arguments of `compute` before the folder."""
    entry, *item = entry_and_item
    # Two workers may compute the same entry at once, with the same bytes, each in its own folder.
    entry.parent.mkdir(parents=True, exist_ok=True)
    partial_entry = Path(mkdtemp(prefix=f".{entry.name}.", dir=entry.parent))
    try:
        compute(*item, partial_entry)
        (partial_entry / SUMS).write_text(json.dumps(_sums(partial_entry, {})), encoding="utf-8")
        partial_entry.rename(entry)
    except OSError:
        if not _is_known(entry):  # otherwise another worker was faster
            raise
    finally:
        shutil.rmtree(partial_entry, ignore_errors=True)


def _entry(kind: str, compute: Callable[..., None], data_key: str) -> Path:
    while isinstance(compute, partial):
        compute = compute.func
    return cache_folder(kind, cache_key(computing_sha256(compute.__module__), data_key))


def cache_folder(kind: str, key: str) -> Path:
    """The folder of the entry with this key."""
    if parent_process() is None:  # not in workers: their locks would keep the parent from evicting entries
        in_use()
    return CACHE / kind / key[:2] / key


def in_use() -> IO[str]:
    """Take the cache's lock, shared with other users until this process ends, so that none evicts what another reads.

    A process must call this if only its workers use the cache.
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
        now = _sums(entry, recorded)
        if [(name, sums[0]) for name, sums in now.items()] == [(name, sums[0]) for name, sums in recorded.items()]:
            if now != recorded:  # for example in a copy of the cache
                atomic_write(entry / SUMS, json.dumps(now))
            return True
    except (OSError, ValueError):
        pass
    print(f"{entry}: damaged or from an earlier version; computing it again", flush=True)
    shutil.rmtree(entry, ignore_errors=True)
    return False


def _sums(entry: Path, recorded: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The content of `SUMS` for the current files. Only files that differ from their record are read."""
    sums = {}
    for file in sorted(file for file in entry.rglob("*") if file.is_file() and file != entry / SUMS):
        name, state = file.relative_to(entry).as_posix(), [*file_state(file.stat())]
        sha256, *known = recorded.get(name, [""])
        sums[name] = [sha256 if known == state else file_sha256(file), *state]
    return sums


def hash_in_workers(files: Sequence[Path]) -> None:
    """Hash files in the workers of `map_shards`, for `known_sha256` to remember."""
    states = [(file.absolute(), *file_state(file.stat())) for file in files]
    remembered_sha256.update(zip(states, map_shards(file_sha256, files), strict=True))


def drop_unused() -> None:
    """Delete leftovers of kills and, above `PARROTFLOW_SHARD_CACHE_GB` (default 50), the least recently used entries.

    Deletes nothing while another process uses the cache. Raises UserError if the variable is not a number.
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
                is_left_behind = time.time() - used > 24 * 3600
            else:
                total += sum(file.stat().st_size for file in entry.rglob("*") if file.is_file())
            if is_left_behind if is_partial else total > limit_bytes:
                shutil.rmtree(entry)
    except BlockingIOError:
        return
    finally:
        fcntl.flock(in_use(), fcntl.LOCK_SH)
