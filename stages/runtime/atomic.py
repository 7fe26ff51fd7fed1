"""Atomic writes, hashes of files, and pointers of Git LFS.

A result is written under another name, flushed to the disk, then renamed. A folder needs no protection of an old
version, nor from a second writer, because DVC removes a stage's outputs first and runs one stage at a time.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stages.runtime.errors import UserError

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
"""The first line of a pointer, which git checks out in place of a file that Git LFS has not downloaded."""

FileState = tuple[int, int, int]
"""Size, time of change and inode, which change with the content of a file and cost no reading."""

NOT_HERE = "Git LFS pointer, not the data (`git lfs pull` downloads it)"
NOT_PULLED = "DVC file without its data (run `dvc pull` or `dvc checkout`)"


@contextmanager
def atomic_folder(place: Path) -> Iterator[Path]:
    """Yield an empty folder, which replaces `place` if the block raises no error. Removes leftovers of kills first."""
    place.parent.mkdir(parents=True, exist_ok=True)
    for left in place.parent.glob(f".{place.name}.*.partial"):
        shutil.rmtree(left, ignore_errors=True)
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    partial.mkdir()
    try:
        yield partial
        for path in (*partial.rglob("*"), partial):
            flush_to_disk(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    partial.rename(place)
    flush_to_disk(place.parent)


def atomic_write(place: Path, content: str | bytes) -> None:
    """Write `content` (text as UTF-8) so that readers see either the old file or the complete new one."""
    place.parent.mkdir(parents=True, exist_ok=True)
    # A unique name: if two processes write at once, the last one's file remains, complete.
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        flush_to_disk(partial)
        partial.replace(place)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    flush_to_disk(place.parent)


def flush_to_disk(path: Path) -> None:
    """fsync a file or a folder, so that its content is on the disk before it is renamed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_state(status: os.stat_result) -> FileState:
    """The `FileState` of a file."""
    return status.st_size, status.st_mtime_ns, status.st_ino


remembered_sha256: dict[tuple[Path, *FileState], str] = {}
"""The hashes of files that this process has read, by path and state."""


def known_sha256(file: Path) -> str:
    """The sha256 of a file, read again only if the file has changed."""
    state = (file.absolute(), *file_state(file.stat()))
    if state not in remembered_sha256:
        remembered_sha256[state] = file_sha256(file)
    return remembered_sha256[state]


def file_md5(path: Path) -> str:
    """The md5 of a file's bytes, by which DVC names it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def is_lfs_pointer(path: Path | os.DirEntry[str]) -> bool:
    """True if a file is a pointer of Git LFS; False if it cannot be read, which its reader reports."""
    try:
        if path.stat().st_size >= 1024:  # pointers are smaller, by Git LFS's specification
            return False
        with Path(path).open("rb") as file:
            return file.read(len(LFS_POINTER)) == LFS_POINTER
    except OSError:
        return False


def require_here(*paths: Path) -> None:
    """Raise UserError, naming the file, if one is a pointer of Git LFS."""
    for path in filter(is_lfs_pointer, paths):
        raise UserError(f"{path}: {NOT_HERE}")
