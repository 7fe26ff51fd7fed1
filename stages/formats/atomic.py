"""A result appears whole or not at all: written beside its place, flushed to the disk, then renamed.

POSIX rename(2) is atomic within a file system, so a kill at any instant leaves the old result or the new one.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_folder(place: Path) -> Iterator[Path]:
    """Give an empty folder to write into; on leaving without an error it becomes `place`.

    What an earlier kill left half-written is removed first.
    """
    partial = place.with_name(f".{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    for path in sorted(partial.rglob("*")):
        flush_to_disk(path)
    flush_to_disk(partial)
    if place.is_dir():
        shutil.rmtree(place)
    elif place.exists():
        place.unlink()
    partial.rename(place)
    flush_to_disk(place.parent)


def write_whole_file(place: Path, content: str | bytes) -> None:
    """Write `content` (text as UTF-8) so that readers see the old file or the whole new one."""
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.partial")
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
