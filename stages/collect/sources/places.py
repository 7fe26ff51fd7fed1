"""Finds and opens files, on this machine or at any URL that fsspec knows."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import fsspec

from stages.formats.entry import UnavailableError, UserError


@dataclass(frozen=True, slots=True)
class Place:
    """One file that a pattern found."""

    name: str
    """Its path, or its URL."""
    size: int | None
    """Bytes, where it is known."""
    is_file: bool
    """False for pipes, devices and links to nowhere."""
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
        for path in _files_below(match) if match.is_dir() else [match]:
            is_file = path.is_file()
            yield Place(path.as_posix(), path.stat().st_size if is_file else None, is_file, partial(_open_local, path))


def _open_local(path: Path) -> BinaryIO:
    return path.open("rb")


def _files_below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place) / name for name in files if not name.startswith("."))


def _remote(pattern: str) -> Iterator[Place]:
    try:
        system, path = fsspec.core.url_to_fs(pattern)
        if system.isdir(path):
            path = path.rstrip("/") + "/**"
        listing = system.glob(path, detail=True) if set("*?[") & set(path) else {path: system.info(path)}
    except FileNotFoundError:
        return
    except (OSError, ValueError, ImportError) as error:
        raise UnavailableError(
            f"collect.sources: `{pattern}` cannot be listed ({error}); "
            "check the address, the network and the credentials"
        ) from None
    for name, info in listing.items():
        if info.get("type") == "file":
            yield Place(system.unstrip_protocol(name), info.get("size"), True, partial(system.open, name, "rb"))
