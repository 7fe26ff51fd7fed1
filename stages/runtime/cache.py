"""What stages have computed, kept by everything that it was computed from: the one cache of stages/.

It is in the ignored folder `.parrotflow/cache/KIND`, outside DVC's outs: deleting it costs only time. A key has two
forms of results:

    an entry   `cached`, `map_cached`, `map_cached_parts`: a folder of files, whole or not there. An edit of one
               document costs one shard.
    a log      `ResultLog`: results by name, each appended as soon as it is computed, so that a kill loses none

Files are copied out of it, so editing a result cannot change the cache. What is read is compared with its checksum
first: a damaged entry is computed again, and so is a damaged result of a log.
"""

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from io import RawIOBase
from pathlib import Path
from typing import Any, TypeVar

from stages.runtime.atomic import (
    atomic_write,
    entries_named,
    file_sha256,
    flush_folder_to_disk,
    only_writer,
    remove_left_behind,
)
from stages.runtime.code import code_key
from stages.runtime.entry import UserError
from stages.runtime.workers import counted, map_shards

Item = TypeVar("Item")

CACHE = Path(".parrotflow/cache")

SUMS = "sha256.json"
"""In each entry: file name -> sha256 of its other files."""

LIMIT_VARIABLE = "PARROTFLOW_SHARD_CACHE_GB"


def cache_key(*parts: str) -> str:
    """One name for everything that a result depends on, in the order given."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def cached(kind: str, key: str, compute: Callable[[Path], None]) -> Path:
    """The folder with the files that `compute(folder)` writes: from the cache where its code and `key` are known.

    `key` changes with the data that is computed from; the code of `compute` and its libraries count by themselves.
    """
    if found := find_cached(kind, key, compute):
        return found
    entry = _entry(kind, compute, key)
    _fill(entry, compute)
    return entry


def find_cached(kind: str, key: str, compute: Callable[..., None]) -> Path | None:
    """The folder that `cached` would give without computing anything; None where it would have to."""
    entry = _entry(kind, compute, key)
    if not _is_known(entry):
        return None
    os.utime(entry)
    return entry


def map_cached(
    kind: str,
    items: Sequence[Item],
    key_of: Callable[[Item], str],
    compute: Callable[[Item, Path], None],
    threads_each: int = 1,
) -> list[Path]:
    """For each item the folder with the files that `compute(item, folder)` writes; keys as for `cached`.

    Only what the cache does not know is computed, by the workers of `map_shards`, in the order of the items.
    """
    found = map_cached_parts(kind, items, key_of, {"": compute}, partial(_as_a_part, compute), threads_each)
    return [parts[""] for parts in found]


def _as_a_part(
    compute: Callable[[Item, Path], None], item: Item, _: Sequence[str]
) -> dict[str, Callable[[Path], None]]:
    return {"": partial(compute, item)}


def map_cached_parts(
    kind: str,
    items: Sequence[Item],
    key_of: Callable[[Item], str],
    parts: Mapping[str, Callable[..., Any]],
    compute: Callable[[Item, Sequence[str]], Mapping[str, Callable[[Path], None]]],
    threads_each: int = 1,
) -> list[dict[str, Path]]:
    """For each item the folder of each of its parts: results that are computed in one pass and kept apart.

    Of a part the code of its own function counts, and its name, which says all else that it depends on besides the
    item. `compute(item, names)` gives for each of these parts how its files are written. It is asked once for an item,
    for the parts that the cache does not know.
    """
    keys = [key_of(item) for item in items]
    entries = [{name: _entry(kind, function, cache_key(name, key)) for name, function in parts.items()} for key in keys]
    missing = {}
    for key, item, of_item in zip(keys, items, entries, strict=True):
        if unknown := {name: entry for name, entry in of_item.items() if not _is_known(entry)}:
            missing[key] = (item, unknown)
    filled = map_shards(partial(_fill_parts, compute), list(missing.values()), threads_each)
    for _ in counted(filled, kind, "shards", len(missing)):
        pass
    for of_item in entries:
        for entry in of_item.values():
            os.utime(entry)
    return entries


def _fill_parts(
    compute: Callable[[Item, Sequence[str]], Mapping[str, Callable[[Path], None]]],
    item_and_entries: tuple[Item, dict[str, Path]],
) -> None:
    item, entries = item_and_entries
    for name, write in compute(item, list(entries)).items():
        _fill(entries[name], write)


def shard_sha256(shard: Path) -> str:
    """The sha256 of a shard's file, read once in a process as long as it does not change."""
    state = shard.stat()
    return _sha256_in_state(shard, state.st_mtime_ns, state.st_size)


@cache
def _sha256_in_state(shard: Path, _modified_ns: int, _size: int) -> str:
    return file_sha256(shard)


def _entry(kind: str, compute: Callable[..., None], data_key: str) -> Path:
    return cache_folder(kind, cache_key(code_key(compute), data_key))


def cache_folder(kind: str, key: str) -> Path:
    """Where the cache keeps what has this key."""
    return CACHE / kind / key[:2] / key


def _is_known(entry: Path) -> bool:
    """Whether there is an entry with the files that were written. One that is damaged is removed."""
    if not entry.is_dir():
        return False
    try:
        if json.loads((entry / SUMS).read_bytes()) == _sums(entry):
            return True
    except (OSError, ValueError):
        pass
    print(f"{entry}: damaged, or of an earlier version: computed again", flush=True)
    _evict(entry)
    return False


def _sums(entry: Path) -> dict[str, str]:
    files = sorted(file for file in entry.rglob("*") if file.is_file() and file != entry / SUMS)
    return {file.relative_to(entry).as_posix(): file_sha256(file) for file in files}


def _fill(entry: Path, compute: Callable[[Path], None]) -> None:
    # Two workers may compute the same entry at once; each has a folder of its own, and the same bytes. Its lock, held
    # until it has the entry's name, tells it from what a kill has left. `drop_unused` may hold it for an instant.
    own = entry.with_name(f".{entry.name}.{os.getpid()}.partial")
    for left in entries_named(entry.parent, f".{entry.name}.", ".partial"):
        remove_left_behind(left)
    with only_writer(own, wait=True):
        try:
            compute(own)
            (own / SUMS).write_text(json.dumps(_sums(own)), encoding="utf-8")
            flush_folder_to_disk(own)
            own.rename(entry)
        except BaseException as error:
            shutil.rmtree(own, ignore_errors=True)
            if not (isinstance(error, OSError) and entry.is_dir()):  # else the other one was faster
                raise


class ResultLog:
    """Results by name, as JSON, all of one key; several processes may append to it at once.

    `key` says all that a result depends on besides its name, the code that computes it included.
    """

    def __init__(self, kind: str, key: str) -> None:
        self.folder = cache_folder(kind, key)
        self.file = self.folder / "log.jsonl"
        """A line of checksum, name and result for each result."""

    def read(self) -> dict[str, Any]:
        """The results; without lines that a kill has truncated and those that are damaged."""
        results = {}
        with suppress(FileNotFoundError):
            content = self.file.read_bytes()
            with suppress(FileNotFoundError):  # another run evicts it
                os.utime(self.folder)
            for line in content.split(b"\n"):
                checksum, _, result = line.partition(b" ")
                if checksum == _checksum(result):
                    name, value = json.loads(result)
                    results[name] = value
        return results

    def append(self, name: str, result: Any) -> None:
        """Write a result at the end; a later one of the same name counts."""
        with self._opened() as file:
            # In one call, so that lines of several processes do not mix. The newline first: it ends a truncated line.
            file.write(b"\n" + _line(name, result))

    def _opened(self) -> RawIOBase:
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # another run evicts it at this instant
                return self.file.open("ab", buffering=0)

    def drop(self) -> None:
        """Delete it, once its results are elsewhere."""
        _evict(self.folder)

    def replace(self, results: Mapping[str, Any]) -> None:
        """Hold these results alone."""
        atomic_write(self.file, b"\n".join(_line(*one) for one in results.items()))


def _line(name: str, result: Any) -> bytes:
    text = json.dumps([name, result]).encode()
    return _checksum(text) + b" " + text


def _checksum(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)


def drop_unused(kind: str) -> None:
    """Delete what was unused for longest, down to `PARROTFLOW_SHARD_CACHE_GB` (default 50) for each kind.

    Raises UserError for a variable that is not a number.
    """
    limit = os.environ.get(LIMIT_VARIABLE) or "50"
    try:
        limit_bytes = float(limit) * 1e9
    except ValueError:
        raise UserError(f"{LIMIT_VARIABLE}={limit}: expected a number of gigabytes") from None
    entries = []
    for path in _whole(kind):
        with suppress(FileNotFoundError):  # another run evicts it
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            entries.append((path.stat().st_mtime_ns, path, size))
    total = 0
    for _, entry, size in sorted(entries, reverse=True):
        total += size
        if total > limit_bytes:
            _evict(entry)


def keep_entries(kind: str, kept: Collection[Path]) -> None:
    """Delete everything of a kind but these entries and folders of logs."""
    for path in _whole(kind):
        if path not in kept:
            _evict(path)


def _whole(kind: str) -> Iterator[Path]:
    """The folders of a kind. What kills have left is deleted: half-written entries and half-deleted ones."""
    for path in list((CACHE / kind).glob("??/*")):
        if "." in path.name:
            remove_left_behind(path)
        else:
            yield path


def _evict(entry: Path) -> None:
    # Renamed before it is deleted: after a kill midway no half of it counts as an entry, whose name is its key alone.
    evicted = entry.with_name(f"{entry.name}.evicted.partial")
    shutil.rmtree(evicted, ignore_errors=True)  # of such a kill
    with suppress(FileNotFoundError):  # another run evicts it too
        entry.rename(evicted)
    shutil.rmtree(evicted, ignore_errors=True)
