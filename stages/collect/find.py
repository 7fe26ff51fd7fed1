"""Finds the files of sources, on this machine or at any URL that fsspec knows, and opens them, decompressed.

A source takes the files that DVC hashes: hidden files, links, and what .dvcignore names are left out and counted.
"""

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from stages.formats.opening import decompressed, opened_file
from stages.runtime.atomic import NOT_HERE, NOT_PULLED, is_lfs_pointer
from stages.runtime.credentials import without_credentials
from stages.runtime.errors import UnavailableError, UserError, is_access_denied, message_on_one_line

HIDDEN = "hidden (its name begins with a dot)"
LINK = "link (copy its target, or name it in globs)"
NOT_REGULAR = "not a regular file"
NOT_HASHED = "ignored by DVC (.dvcignore, or a DVC project of its own)"
OF_DVC = "DVC's own file"

SILENT_SECONDS = 60
"""How long a web server may send nothing."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that a pattern found."""

    name: str
    """Its path, or its URL without credentials."""
    flaw: str = ""
    """Why it is left out; empty if it is read."""
    url: str = ""
    """The URL that fsspec opens; empty for a local file."""


def find(patterns: Sequence[str]) -> list[FoundFile]:
    """The files that the patterns match, each once, in the order of their names; a folder gives all files below it.

    Raises UserError for a pattern that matches nothing to read, UnavailableError for a URL that cannot be listed now.
    """
    found: dict[str, FoundFile] = {}
    is_ignored, real_path = _ignored_by_dvc(), cache(os.path.realpath)
    for pattern in patterns:
        if "://" in pattern:
            files = list(_remote(pattern))
        else:
            files = list(_local(Path(pattern)))
            files = [replace(f, flaw=NOT_HASHED) if not f.flaw and is_ignored(f.name) else f for f in files]
        if all(file.flaw for file in files):
            raise UserError(_nothing_found(pattern, files))
        for file in files:
            folder, name = os.path.split(file.name)
            # A file has the real path of its folder, which is looked up once, unless it is a link: these have a flaw,
            # or a pattern names them.
            is_link = file.flaw or len(files) == 1
            key = file.url or (real_path(file.name) if is_link else f"{real_path(folder)}/{name}")
            # A link that a pattern names is read although another pattern passes it by.
            if key not in found or (found[key].flaw and not file.flaw):
                found[key] = file
    return sorted(found.values(), key=lambda file: file.name)


def _nothing_found(pattern: str, files: Sequence[FoundFile]) -> str:
    where = "" if "://" in pattern else f" (relative to {Path.cwd()})"
    if flawed := next((file for file in files if file.flaw != HIDDEN), None):
        return f"collect.sources: `{pattern}` has no file to read; `{flawed.name}`: {flawed.flaw}{where}"
    if "://" not in pattern and Path(pattern).is_dir():
        return f"collect.sources: `{pattern}` is empty: put your documents into it{where}"
    return f"collect.sources: `{pattern}` matches no file; correct the path{where}"


def before_wildcards(pattern: str | Path) -> Path:
    """The file or folder that the beginning of a path with wildcards names."""
    return Path(*takewhile(lambda part: not set("*?[") & set(part), Path(pattern).parts))


def is_hidden(parts: Iterable[str], named: Collection[str] = ()) -> bool:
    """True if a part of a path begins with a dot, unless the pattern names that very part."""
    return any(part.startswith(".") and part not in (".", "..", *named) for part in parts)


def _local(pattern: Path) -> Iterator[FoundFile]:
    base, parts = before_wildcards(pattern), pattern.parts
    if base == pattern:
        if pattern.is_dir():
            yield from _folder(pattern)
        elif os.path.lexists(pattern):
            yield _file(pattern, follow=True)
        return
    if any("**" in part and part != "**" for part in parts):
        raise UserError(
            f"collect.sources: `{pattern}`: `**` matches folders, and has to be a whole part of the path, as in "
            "`corpus/**/*.py`"
        )
    for match in base.glob("/".join(parts[len(base.parts) :])):
        if is_hidden(match.relative_to(base).parts, named=parts):
            yield FoundFile(str(match), HIDDEN)
        elif match.is_dir() and not match.is_symlink():
            yield from _folder(match)
        else:
            yield _file(match)


def _folder(folder: Path | str) -> Iterator[FoundFile]:
    """The files below a folder; for a hidden folder or a link to one, the folder itself."""
    try:
        entries = list(os.scandir(folder))  # tells of most files what they are without a call of the system for each
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be listed ({error.strerror}); correct its permissions") from None
    for entry in entries:
        if entry.name.startswith("."):
            yield FoundFile(entry.path.removeprefix("./"), HIDDEN)
        elif entry.is_dir(follow_symlinks=False):
            yield from _folder(entry.path)
        else:
            yield _file(entry)


def _file(entry: Path | os.DirEntry[str], follow: bool = False) -> FoundFile:
    name = os.fspath(entry).removeprefix("./")
    if entry.is_symlink() and not follow:
        return FoundFile(name, LINK)
    if not entry.is_file():
        return FoundFile(name, NOT_REGULAR)
    if name.endswith(".dvc"):
        return FoundFile(name, OF_DVC if Path(name).with_suffix("").exists() else NOT_PULLED)
    return FoundFile(name, NOT_HERE if is_lfs_pointer(entry) else "")


def _ignored_by_dvc() -> Callable[[str], bool]:
    """Tells whether DVC leaves out a file when it hashes the folder that the file is in."""
    if not Path(".dvc").is_dir():
        return lambda _: False
    from dvc.fs import localfs  # slow
    from dvc.ignore import DvcIgnoreFilter

    ignores: Callable[[str], bool] = DvcIgnoreFilter(localfs, str(Path.cwd())).is_ignored_file
    return ignores


def _remote(pattern: str) -> Iterator[FoundFile]:
    """The files at a URL. Over HTTP a URL without wildcards is one document: a page with links is not a folder."""
    import fsspec  # slow, as the clients of its file systems are

    if "::" in pattern:
        raise UserError(f"collect.sources: `{pattern}`: fsspec reads `::` as a chain of URLs; name a host without it")
    web = pattern.startswith(("http://", "https://"))
    wildcards = set("*[" if web else "*?[")  # in a web address `?` begins the query
    try:
        system, path = fsspec.core.url_to_fs(pattern, **(_web_options() if web else {}))
        system.invalidate_cache()  # an earlier listing may be out of date
        if not web and system.isdir(path):
            path = path.rstrip("/") + "/**"
        first = next((n for n, character in enumerate(path) if character in wildcards), None)
        listing = {path: system.info(path)} if first is None else system.glob(path, detail=True)
    except Exception as error:  # each file system of fsspec has errors of its own
        # For HTTP, fsspec calls every failure a missing file.
        cause = error.__cause__ if isinstance(error, FileNotFoundError) else error
        if cause is None or getattr(cause, "status", None) in (404, 410):
            return
        raise remote_error(f"collect.sources: `{pattern}` cannot be listed", cause) from None
    folder = "" if first is None else path[: path.rfind("/", 0, first) + 1]
    for name, info in listing.items():
        if info.get("type") == "file":
            url = system.unstrip_protocol(name)
            below = name.removeprefix(folder).partition("?")[0].split("/") if first is not None else []
            flaw = HIDDEN if is_hidden(below, named=path.split("/")) else ""
            yield FoundFile(without_credentials(url), flaw, url)


def _web_options() -> dict[str, Any]:
    """Options of fsspec's HTTP: the user's configuration, ~/.netrc and proxies, and a bound on waiting."""
    from aiohttp import ClientTimeout
    from fsspec.config import conf

    timeout = ClientTimeout(None, sock_connect=SILENT_SECONDS, sock_read=SILENT_SECONDS)
    configured = {**conf.get("http", {}), **conf.get("https", {})}
    return {"client_kwargs": {"trust_env": True, "timeout": timeout, **configured.get("client_kwargs", {})}}


@contextmanager
def opened(file: FoundFile) -> Iterator[BinaryIO]:
    """The content of a file, decompressed if its name says so. Raises UserError for a file of this machine that cannot
    be read or is damaged, UnavailableError for a server that breaks off."""
    if not file.url:
        with opened_file(Path(file.name)) as content:
            yield content
        return
    import fsspec  # slow

    web = file.url.startswith(("http://", "https://"))
    try:
        system, path = fsspec.core.url_to_fs(file.url, **(_web_options() if web else {}))
        with system.open(path, "rb") as stream, decompressed(file.name, stream) as content:
            yield content
    except UserError:
        raise
    except Exception as error:  # each file system of fsspec has errors of its own
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise remote_error(f"{file.name}: cannot be read", error) from None


def remote_error(what: str, error: BaseException) -> UserError:
    """The error of a file system for users: they can correct refused credentials, other failures may go away."""
    reason = message_on_one_line(error)
    if is_access_denied(error):
        return UserError(f"{what}: access denied ({reason}); correct the credentials or the address")
    return UnavailableError(f"{what} ({reason}); check the address and the network and try again")
