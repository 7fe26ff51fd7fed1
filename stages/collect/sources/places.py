"""Finds and opens files, on this machine or at any URL that fsspec knows."""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import fsspec

from stages.collect.content import State
from stages.runtime.entry import UnavailableError, UserError


@dataclass(frozen=True, slots=True)
class Place:
    """One file that a pattern found."""

    name: str
    """Its path, or its URL."""
    size: int | None
    """Bytes, where it is known."""
    is_file: bool
    """False for pipes, devices and links to nowhere."""
    state: State | None
    """By which a change of a file on this machine is known."""
    open: Callable[[], BinaryIO]


def find(patterns: Sequence[str]) -> list[Place]:
    """What the patterns match, each once, in the order of the names; a folder gives all below it.

    Links to folders are not followed, so a loop of links ends. Raises UserError for a pattern that matches nothing or
    cannot be listed.
    """
    found: dict[str, Place] = {}
    for pattern in patterns:
        places = list(_remote(pattern) if "://" in pattern else _local(Path(pattern)))
        if not places:
            where = "" if "://" in pattern else f" (relative to {Path.cwd()})"
            raise UserError(f"collect.sources: `{pattern}` matches no file; correct the path{where}")
        found.update((place.name, place) for place in places)
    return [found[name] for name in sorted(found)]


def _local(pattern: Path) -> Iterator[Place]:
    relative = pattern.relative_to(pattern.anchor)
    matches = Path(pattern.anchor).glob(relative.as_posix()) if relative.parts else [pattern]
    named = set(pattern.parts)
    for match in matches:
        if any(part.startswith(".") and part not in named for part in match.parts):
            continue
        if match.is_symlink() and match.is_dir() and match != pattern:
            continue
        if match.is_dir():
            yield from (_local_place(entry.path, entry) for entry in _files_below(str(match)))
        else:
            yield _local_place(str(match), match)


def _local_place(path: str, entry: "os.DirEntry[str] | Path") -> Place:
    name = path.replace(os.sep, "/")
    try:
        info = entry.stat()
    except OSError:
        return Place(name, None, False, None, partial(_open_local, path))
    state = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
    return Place(name, info.st_size, stat.S_ISREG(info.st_mode), state, partial(_open_local, path))


def _open_local(path: str) -> BinaryIO:
    return Path(path).open("rb")


def _files_below(folder: str) -> "Iterator[os.DirEntry[str]]":
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if not entry.is_dir():
                yield entry
            elif not entry.is_symlink():
                try:
                    yield from _files_below(entry.path)
                except OSError:
                    # It is no regular file: left out and named as such.
                    yield entry


def _remote(pattern: str) -> Iterator[Place]:
    try:
        system, path = fsspec.core.url_to_fs(pattern)
        if system.isdir(path):
            path = path.rstrip("/") + "/**"
        listing = system.glob(path, detail=True) if set("*?[") & set(path) else {path: system.info(path)}
    except FileNotFoundError:
        return
    except Exception as error:  # each file system of fsspec has errors of its own
        said = " ".join(str(error).split()) or type(error).__name__
        raise UnavailableError(
            f"collect.sources: `{pattern}` cannot be listed ({said}); "
            "check the address, the network and the credentials"
        ) from None
    for name, info in listing.items():
        if info.get("type") == "file":
            yield Place(system.unstrip_protocol(name), info.get("size"), True, None, partial(system.open, name, "rb"))
