"""Files: a result appears whole or not at all, and the hashes of what is in one.

A result is written under another name, flushed to the disk, then renamed.

A file is replaced by rename(2), a folder by renameat2(2) with RENAME_EXCHANGE: at every instant, also of a kill or a
power failure, the old result or the new one is there. Where a system cannot exchange (macOS, some network file
systems), a folder's old version is renamed away just before the new one is renamed in: a kill between the two leaves
neither under its name.
"""

import ctypes
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import get_native_id

from stages.runtime.entry import UserError

FLUSHES_AT_ONCE = 16

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Of linux/fcntl.h and linux/fs.h."""


@contextmanager
def atomic_folder(place: Path) -> Iterator[Path]:
    """Give an empty folder to write into; on leaving without an error it becomes `place`.

    What an earlier kill left half-written is removed first. Raises UserError while another run writes the same folder.
    """
    partial = place.with_name(f".{place.name}.partial")
    with only_writer(partial):
        try:
            yield partial
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _publish(partial, place)


@contextmanager
def only_writer(partial: Path, wait: bool = False) -> Iterator[None]:
    """An empty folder that no other process writes into. The lock on it ends with its process, however that ends.

    Raises UserError while another run has the lock; with `wait`, waits for it.
    """
    lock = None
    while lock is None:
        partial.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            partial.mkdir()
        with suppress(FileNotFoundError):
            lock = _lock(partial, wait)
    try:
        # What kills have left: half of a new folder, and old ones whose new version was already there.
        for file in partial.iterdir():
            _remove(file)
        for old in entries_named(partial.parent, f"{partial.stem}.", ".old.partial"):
            remove_left_behind(old)
        yield
    finally:
        os.close(lock)


def entries_named(folder: Path, begin: str, end: str) -> list[Path]:
    """What is in a folder under names that begin and end so. `glob` would compile a pattern for each name of ours."""
    paths = folder.iterdir() if folder.is_dir() else ()
    least = len(begin) + len(end)
    return [
        path for path in paths if path.name.startswith(begin) and path.name.endswith(end) and len(path.name) >= least
    ]


def remove_left_behind(folder: Path) -> None:
    """Delete a half-written folder, unless a living run holds its lock."""
    with suppress(OSError, UserError):
        if (lock := _lock(folder)) is not None:
            try:
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _lock(partial: Path, wait: bool = False) -> int | None:
    """A lock on the folder; None if another run has meanwhile renamed or removed the folder that was locked."""
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if os.path.samestat(os.fstat(descriptor), partial.stat()):
            return descriptor
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(f"{partial}: another run is writing here; wait for it to end, then run again") from None
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return None


def _publish(partial: Path, place: Path) -> None:
    flush_folder_to_disk(partial)
    # Under a name of its own: the next run, or thread, may begin to write into `partial` once this one is renamed.
    staged = place.with_name(f".{place.name}.{os.getpid()}-{get_native_id()}.old.partial")
    partial.rename(staged)
    if not _exchange(staged, place):
        old = staged.with_name(f".{staged.name}")
        with suppress(FileNotFoundError):
            place.rename(old)
        staged.rename(place)
        _remove(old)
    flush_to_disk(place.parent)
    shutil.rmtree(staged, ignore_errors=True)  # the old folder, which the next run may be removing too


def _exchange(left: Path, right: Path) -> bool:
    """Let two paths change their names in one step; False where one is missing, or the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)  # since glibc 2.28
    return renameat2 is not None and renameat2(AT_FDCWD, bytes(left), AT_FDCWD, bytes(right), RENAME_EXCHANGE) == 0


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def atomic_write(place: Path, content: str | bytes) -> None:
    """Write `content` (text as UTF-8) so that readers see the old file or the whole new one."""
    place.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own: of two runs at once the last one's file stays, whole.
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        flush_to_disk(partial)
        partial.replace(place)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    flush_to_disk(place.parent)


def flush_folder_to_disk(folder: Path) -> None:
    """`flush_to_disk` for a folder and all that is below it."""
    # Side by side: a journal commits many files at the price of one.
    list(_flushers().map(flush_to_disk, folder.rglob("*")))
    flush_to_disk(folder)


@cache
def _flushers() -> ThreadPoolExecutor:
    """Threads that are kept: to start some for each folder took more time than to flush it."""
    return ThreadPoolExecutor(FLUSHES_AT_ONCE, "flush")


# A fork has none of these threads.
os.register_at_fork(after_in_child=_flushers.cache_clear)


def flush_to_disk(path: Path) -> None:
    """fsync a file or a folder, so that a rename that follows cannot outrun its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_md5(path: Path) -> str:
    """The md5 of a file's bytes, as DVC names it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
