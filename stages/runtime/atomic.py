"""A result appears whole or not at all: written beside its place, flushed to the disk, then renamed.

POSIX rename(2) is atomic within a file system, so a kill at any instant leaves the old result or the new one.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from stages.runtime.entry import UserError

FLUSHES_AT_ONCE = 16


@contextmanager
def atomic_folder(place: Path) -> Iterator[Path]:
    """Give an empty folder to write into; on leaving without an error it becomes `place`.

    What an earlier kill left half-written is removed first. Raises UserError while another run writes the same folder.
    """
    partial = place.with_name(f".{place.name}.partial")
    with _only_writer(partial):
        try:
            yield partial
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _publish(partial, place)


@contextmanager
def _only_writer(partial: Path) -> Iterator[None]:
    """An empty folder that nobody else writes into. A lock on the folder goes with its process, however that ends."""
    lock = None
    while lock is None:
        partial.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            partial.mkdir()
        with suppress(FileNotFoundError):
            lock = _lock(partial)
    try:
        for left_behind in partial.iterdir():
            _remove(left_behind)
        yield
    finally:
        os.close(lock)


def _lock(partial: Path) -> int | None:
    """A lock on the folder; None if another run has meanwhile renamed or removed the folder that was locked."""
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
    # Side by side: a journal commits many files at the price of one.
    with ThreadPoolExecutor(FLUSHES_AT_ONCE) as pool:
        list(pool.map(flush_to_disk, partial.rglob("*")))
    flush_to_disk(partial)
    # Renamed away before it is deleted: a kill midway leaves no half of the old folder in its place.
    old = place.with_name(f".{place.name}.old.partial")
    _remove(old)
    with suppress(FileNotFoundError):
        place.rename(old)
    _remove(old)
    partial.rename(place)
    flush_to_disk(place.parent)


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
    partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    flush_to_disk(partial)
    partial.replace(place)
    flush_to_disk(place.parent)


def flush_to_disk(path: Path) -> None:
    """fsync a file or a folder, so that a rename that follows cannot outrun its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
