"""Lists the files of sources at URLs, with what their servers say of the version that they have."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from stages.collect.download import Version, open_remote, start_download
from stages.collect.located import HIDDEN, LocatedFile, is_hidden, one_line
from stages.runtime.credentials import without_credentials
from stages.runtime.entry import UnavailableError, UserError

DENIED_STATUS = {401, 403}
"""Status codes of HTTP with which a server refuses the credentials, or asks for some."""

GONE_STATUS = {404, 410}
"""With which it says that there is no such file."""

SILENT_SECONDS = 20
"""A server that sends nothing for so long is unavailable."""

QUESTIONS_AT_ONCE = 8
"""To servers, about single files."""


def remote_files(pattern: str) -> Iterator[LocatedFile]:
    """What a URL names. Over HTTP that is one document, unless it has wildcards: a page with links is no folder."""
    import fsspec  # slow, as the clients of its file systems are

    web = pattern.startswith(("http://", "https://"))
    wildcards = set("*[" if web else "*?[")  # of a web address `?` begins the query
    try:
        system, path = fsspec.core.url_to_fs(pattern, **(_web_options() if web else {}))
        if not web and system.isdir(path):
            path = path.rstrip("/") + "/**"
        listing = system.glob(path, detail=True) if wildcards & set(path) else {path: system.info(path)}
        if web and wildcards & set(path):  # a page with links says nothing of what they lead to
            with ThreadPoolExecutor(QUESTIONS_AT_ONCE) as pool:
                listing = dict(zip(listing, pool.map(system.info, listing), strict=True))
    except Exception as error:  # each file system of fsspec has errors of its own
        # fsspec says of every failure of HTTP that there is no such file.
        cause = error.__cause__ if isinstance(error, FileNotFoundError) else error
        if cause is None or getattr(cause, "status", None) in GONE_STATUS:
            return
        assert isinstance(cause, Exception)
        raise remote_error(f"collect.sources: `{pattern}` cannot be listed", cause) from None
    for name, info in listing.items():
        if info.get("type") == "file":
            # A page may link to files by signed addresses.
            shown = without_credentials(system.unstrip_protocol(name))
            below = name[len(_folder_of(path, wildcards)) :].partition("?")[0] if wildcards & set(path) else ""
            flaw = HIDDEN if is_hidden(below.split("/"), named=path.split("/")) else ""
            version = _version(info)
            if web:
                of_file = (system, name, shown, version)
                fetch = partial(start_download, *of_file)
                yield LocatedFile(shown, partial(open_remote, *of_file), flaw, version.size, fetch=fetch)
            else:
                yield LocatedFile(shown, partial(system.open, name, "rb"), flaw, version.size)


def _version(info: dict[str, Any]) -> Version:
    modified = next((info[key] for key in ("Last-Modified", "LastModified", "updated", "mtime") if info.get(key)), "")
    return Version(str(info.get("ETag") or info.get("etag") or ""), str(modified), info.get("size"))


def _folder_of(path: str, wildcards: set[str]) -> str:
    """A path up to its first part with a wildcard."""
    first = next(position for position, character in enumerate(path) if character in wildcards)
    return path[: path.rfind("/", 0, first) + 1]


def _web_options() -> dict[str, Any]:
    """Of fsspec's HTTP: the user's configuration, ~/.netrc and proxies, and an end to waiting."""
    from aiohttp import ClientTimeout
    from fsspec.config import conf

    timeout = ClientTimeout(None, sock_connect=SILENT_SECONDS, sock_read=SILENT_SECONDS)
    configured = {**conf.get("http", {}), **conf.get("https", {})}
    return {"client_kwargs": {"trust_env": True, "timeout": timeout, **configured.get("client_kwargs", {})}}


def remote_error(what: str, error: Exception) -> UserError:
    """The error of a file system for users: refused credentials are theirs to correct, the rest may go away."""
    reason = one_line(error)
    if isinstance(error, PermissionError) or getattr(error, "status", None) in DENIED_STATUS or "redential" in reason:
        return UserError(f"{what}: access denied ({reason}); correct the credentials or the address")
    return UnavailableError(f"{what} ({reason}); check the address and the network and try again")
