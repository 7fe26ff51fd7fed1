"""Finds the files of sources, on this machine or at any URL that fsspec knows, and opens them, decompressed.

A file that cannot be read, or breaks off while it is read, ends in one message that names it. Checksums of compressed
files are compared by the end of the file.
"""

import bz2
import errno
import gzip
import io
import lzma
import os
import stat
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias, cast

from stages.formats.documents import without_query
from stages.runtime.entry import UnavailableError, UserError

if TYPE_CHECKING:  # slow to import, and the parameters are checked without it
    from stages.collect.content_check import EntryState
    from stages.collect.remote import Download, Version

HIDDEN = "hidden (its name begins with a dot)"
NOT_REGULAR = "no regular file"
LINK_OUT = "link out of its folder"
LINKED_FOLDER = "link to a folder (not followed)"
OTHER_NAME = "link to a file that is taken by its own name"


@dataclass(frozen=True, slots=True)
class LocatedFile:
    """One file that a pattern found."""

    name: str
    """Its path, or its URL."""
    open: Callable[[], BinaryIO]
    flaw: str = ""
    """Why it is not read: a pipe, a device, a link to nowhere, to a folder or out of its own; empty where it is."""
    size: int | None = None
    """Bytes, where it is known."""
    state: "EntryState | None" = None
    """Of a file on this machine, which tells whether it has changed."""
    version: "Version | None" = None
    """What the server says of a file at a URL."""
    download: "Download | None" = None
    """Of it; None where it is read from where it is."""


def find(patterns: Sequence[str]) -> list[LocatedFile]:
    """What the patterns match, each once, in the order of the names; a folder gives all below it.

    A file that they match by several names (`a`, `b/../a`, its absolute path, a link) is one. Hidden files (of a hidden
    folder: the folder), links to nowhere, to folders (never followed), to files that are matched too, and out of the
    pattern's folder have a flaw. Raises UserError for a pattern that matches nothing but such, or is not allowed to be
    listed, UnavailableError for one that cannot be listed now.
    """
    from stages.collect.remote import remote_files  # which imports this module

    found: dict[str, LocatedFile] = {}
    for pattern in patterns:
        files = list(remote_files(pattern) if "://" in pattern else _local(Path(pattern)))
        if all(file.flaw in (HIDDEN, LINK_OUT, LINKED_FOLDER) for file in files):
            link = next((file for file in files if file.flaw != HIDDEN), None)
            where = "" if "://" in pattern else f" (relative to {Path.cwd()})"
            remedy = f"`{link.name}` is a {link.flaw}: copy it, or name it in globs" if link else "correct the path"
            raise UserError(f"collect.sources: `{pattern}` matches no file; {remedy}{where}")
        # What one pattern names is taken, though another one passes by it.
        found |= {file.name: file for file in files if not file.flaw or file.name not in found}
    # So is a folder: it is not left out where it is read by its own name.
    named = {str(Path(pattern)) for pattern in patterns if Path(pattern).is_dir()}
    return _without_other_names([found[name] for name in sorted(found.keys() - named)])


def _without_other_names(files: list[LocatedFile]) -> list[LocatedFile]:
    """Each file once, by the name that is no link and not absolute, if it has such; a link to it has a flaw."""
    alike = Counter(file.state for file in files)
    by_path: dict[str, list[LocatedFile]] = {}
    for file in files:
        if file.state is not None and alike[file.state] > 1:  # only such may be one file
            by_path.setdefault(os.path.realpath(file.name), []).append(file)
    by_path = {path: sorted(names, key=partial(_indirection, path)) for path, names in by_path.items()}
    others = {file.name for names in by_path.values() for file in names[1:]}
    links = {name for name in others if Path(name).is_symlink()}
    return [
        replace(file, flaw=OTHER_NAME) if file.name in links else file
        for file in files
        if file.name not in others or file.name in links
    ]


def _indirection(path: str, file: LocatedFile) -> tuple[bool, bool, str]:
    """Least for the plainest name of the file at a path."""
    name = Path(file.name)
    return str(name.absolute()) != path, name.is_absolute(), file.name


def is_hidden(parts: Iterable[str], named: Collection[str] = ()) -> bool:
    """Whether a part of a path begins with a dot, unless the pattern names that very part."""
    return any(part.startswith(".") and part not in (".", "..", *named) for part in parts)


def before_wildcards(pattern: str | Path) -> Path:
    """The file or folder that the beginning of a pattern for paths names."""
    return Path(*takewhile(lambda part: not set("*?[") & set(part), Path(pattern).parts))


def _local(pattern: Path) -> Iterator[LocatedFile]:
    base, parts = before_wildcards(pattern), pattern.parts
    if base == pattern:
        if pattern.is_dir():
            yield from _folder(pattern)
        elif os.path.lexists(pattern):
            # Named by the user: also where it is a link out of the project.
            yield _local_file(str(pattern), pattern, None)
        return
    if any("**" in part and part != "**" for part in parts):
        raise UserError(
            f"collect.sources: `{pattern}`: `**` matches folders, and has to be a whole part of the path, as in "
            "`corpus/**/*.py`"
        )
    root = os.path.realpath(base)
    wildcards = parts[len(base.parts) :]
    for match in chain(base.glob("/".join(wildcards)), _unfollowed(base, wildcards)):
        if is_hidden(match.relative_to(base).parts, named=parts):
            yield _flawed(match, HIDDEN)
        elif match.is_dir() and not match.is_symlink():
            yield from _folder(match)
        else:
            yield _local_file(str(match), match, root)


def _unfollowed(base: Path, wildcards: Sequence[str]) -> Iterator[Path]:
    """The links to folders that `**` passes by, though it does not follow them and the pattern need not match them."""
    if "**" in wildcards:
        before = wildcards[: wildcards.index("**")]
        for start in base.glob("/".join(before)) if before else [base]:
            for folder, names, _ in os.walk(start):
                names[:] = [name for name in names if not name.startswith(".")]
                yield from (path for name in names if (path := Path(folder, name)).is_symlink())


def _folder(folder: Path) -> Iterator[LocatedFile]:
    root = os.path.realpath(folder)
    for entry in _entries_below(str(folder)):
        if is_hidden([entry.name]):
            yield _flawed(entry.path, HIDDEN)
        else:
            # Only a link can lead out: those to folders are not followed.
            yield _local_file(entry.path, entry, root if entry.is_symlink() else None)


def _local_file(path: str, entry: "os.DirEntry[str] | Path", root: str | None) -> LocatedFile:
    """The file at a path; with `root`, it must be below that folder once all links are followed."""
    try:
        info = entry.stat()
    except OSError:
        return _flawed(path, NOT_REGULAR)
    linked_folder = stat.S_ISDIR(info.st_mode) and entry.is_symlink()
    if not stat.S_ISREG(info.st_mode) and not linked_folder:
        return _flawed(path, NOT_REGULAR)
    if root is not None and not Path(os.path.realpath(path)).is_relative_to(root):
        return _flawed(path, LINK_OUT)
    if linked_folder:
        return _flawed(path, LINKED_FOLDER)
    state = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
    return LocatedFile(path, partial(_open_local, path), size=info.st_size, state=state)


def _flawed(path: str | Path, flaw: str) -> LocatedFile:
    return LocatedFile(str(path), partial(_open_local, path), flaw)


def _open_local(path: str | Path) -> BinaryIO:
    return Path(path).open("rb")


def _entries_below(folder: str) -> "Iterator[os.DirEntry[str]]":
    """The files below a folder, links to folders, and of hidden and unreadable folders the folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or not entry.is_dir(follow_symlinks=False):
                yield entry
            else:
                try:
                    yield from _entries_below(entry.path)
                except OSError:
                    # It is not a regular file: left out and named as such.
                    yield entry


BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""What a file raises that cannot be read, or is not what the ending of its name says."""

DENIED_STATUS = {401, 403}
"""With which a server refuses the credentials, or asks for some."""

Opener: TypeAlias = Callable[[BinaryIO], BinaryIO]


def _open_zstd(stream: BinaryIO) -> BinaryIO:
    import pyarrow as pa  # slow; its reader refuses a file that is cut off, and compares a checksum where there is one

    return cast("BinaryIO", pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd"))


OPENERS: dict[str, Opener] = {
    ".gz": cast("Opener", gzip.open),
    ".bz2": cast("Opener", bz2.open),
    ".xz": cast("Opener", lzma.open),
    ".zst": _open_zstd,
}
MAGIC = {
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ": ".xz",
    b"\x5d\x00\x00": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
}
"""How compressed files begin."""

COMPRESSED = tuple(OPENERS)
NOT_READ = (".lz4", ".7z", ".rar")


def has_ending(name: str, endings: str | tuple[str, ...]) -> bool:
    """Whether the name of a file, of a web address without the query, ends so, in upper or lower case."""
    return without_query(name).lower().endswith(endings)


def by_ending(name: str, stream: BinaryIO) -> BinaryIO:
    """The content of a file, decompressed where the ending of its name says so."""
    return next((opens(stream) for ending, opens in OPENERS.items() if has_ending(name, ending)), stream)


def by_magic(stream: BinaryIO) -> BinaryIO:
    """The content of a file, decompressed where its first bytes say so."""
    buffered = io.BufferedReader(cast("io.RawIOBase", stream))
    start = buffered.peek(8)
    content = cast("BinaryIO", buffered)
    return next((OPENERS[ending](content) for magic, ending in MAGIC.items() if start.startswith(magic)), content)


@contextmanager
def opened(file: LocatedFile) -> Iterator[BinaryIO]:
    """A file to read. Raises UserError that names it if it is not a regular file or breaks off while it is read."""
    if file.flaw:
        raise UserError(f"{file.name}: {file.flaw}; correct or remove it")
    try:
        with file.open() as stream:
            yield stream
    except UserError:
        raise
    except Exception as error:  # each file system of fsspec has errors of its own
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # of this machine, on which it is downloaded
        if "://" in file.name:
            raise remote_error(f"{file.name}: cannot be read", error) from None
        if isinstance(error, BROKEN):
            raise UserError(f"{file.name}: cannot be read ({one_line(error)}); correct or remove it") from None
        raise


@contextmanager
def decompressed(file: LocatedFile) -> Iterator[BinaryIO]:
    """As `opened`; a file whose name ends in .gz, .bz2, .xz or .zst is decompressed while it is read."""
    if has_ending(file.name, NOT_READ):
        raise UserError(
            f"{file.name}: this compression is not read; decompress it, or use {', '.join(COMPRESSED[:-1])} "
            f"or {COMPRESSED[-1]}"
        )
    with opened(file) as stream, by_ending(file.name, stream) as content:
        yield content


def remote_error(what: str, error: Exception) -> UserError:
    """The error of a file system for users: refused credentials are theirs to correct, the rest may go away."""
    reason = one_line(error)
    if isinstance(error, PermissionError) or getattr(error, "status", None) in DENIED_STATUS or "redential" in reason:
        return UserError(f"{what}: access denied ({reason}); correct the credentials or the address")
    return UnavailableError(f"{what} ({reason}); check the address and the network and try again")


def one_line(error: Exception) -> str:
    """What a library says of an error, without its line breaks."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(reason.split()) or type(error).__name__
