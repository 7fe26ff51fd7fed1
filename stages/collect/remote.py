"""The files of sources at URLs: what their servers say of them, and those of HTTP and HTTPS downloaded side by side.

A download continues after a kill where it had come. What has arrived is in a file of its own, whose name is a hash of
the address and of the version that the server has: a later run asks for the rest with `Range` and `If-Range`, so that a
server which has another version by then sends it whole. A reader follows the file as it grows. Whole files stay in the
cache, so that a run that reads them again asks the server for their version alone.
"""

import asyncio
import io
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from stages.collect.located import HIDDEN, LocatedFile, is_hidden, remote_error
from stages.runtime.cache import CACHE, cache_key, cached, find_cached
from stages.runtime.credentials import without_credentials
from stages.runtime.entry import UnavailableError, whole_number

KIND = "downloads"
"""Of whole files in the cache of stages."""

PARTS = CACHE / "unfinished"
"""What has arrived of files that are not whole."""

DOWNLOADS_VARIABLE = "PARROTFLOW_DOWNLOADS"
DOWNLOADS_AT_ONCE = 4

BLOCK_BYTES = 2**20

LINE_SECONDS = 10.0
"""Between two lines about a file that a reader waits for."""

PARTIAL, RANGE_IS_EMPTY = 206, 416
"""Status codes of HTTP: the range that was asked for; it begins where the file ends, or beyond."""

CONTENT = "content"
"""The name of a whole file in its entry of the cache."""

GONE_STATUS = {404, 410}
"""There is no such file."""

SILENT_SECONDS = 20
"""A server that sends nothing for so long is unavailable."""

QUESTIONS_AT_ONCE = 8
"""To servers, about single files."""


class Version(NamedTuple):
    """What a server says of a file. Where all of it is as before, the file is taken to be the same."""

    etag: str
    """Empty where the server gives none, as the next."""
    last_modified: str
    size: int | None
    """Bytes; None where the server does not say."""

    @property
    def validator(self) -> str:
        """The value of If-Range, by which the server would notice that it has another version (RFC 9110, 13.1.5): the
        ETag if it is a strong one, else the date; empty where there is neither."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.last_modified


def remote_files(pattern: str) -> Iterator[LocatedFile]:
    """What a URL names. Over HTTP that is one document, unless it has wildcards: a page with links is no folder."""
    import fsspec  # slow, as the clients of its file systems are

    web = pattern.startswith(("http://", "https://"))
    wildcards = set("*[" if web else "*?[")  # of a web address `?` begins the query
    try:
        system, path = fsspec.core.url_to_fs(pattern, **(_web_options() if web else {}))
        system.invalidate_cache()  # a listing of before says nothing of what is there now
        if not web and system.isdir(path):
            path = path.rstrip("/") + "/**"
        first_wildcard = next((n for n, character in enumerate(path) if character in wildcards), None)
        listing = {path: system.info(path)} if first_wildcard is None else system.glob(path, detail=True)
        if web and first_wildcard is not None:  # a page with links says nothing of what they lead to
            with ThreadPoolExecutor(QUESTIONS_AT_ONCE) as pool:
                listing = dict(zip(listing, pool.map(system.info, listing), strict=True))
    except Exception as error:  # each file system of fsspec has errors of its own
        # fsspec says of every failure of HTTP that there is no such file.
        cause = error.__cause__ if isinstance(error, FileNotFoundError) else error
        if cause is None or getattr(cause, "status", None) in GONE_STATUS:
            return
        assert isinstance(cause, Exception)
        raise remote_error(f"collect.sources: `{pattern}` cannot be listed", cause) from None
    folder = "" if first_wildcard is None else path[: path.rfind("/", 0, first_wildcard) + 1]
    for name, info in listing.items():
        if info.get("type") == "file":
            # A page may link to files by signed addresses.
            shown = without_credentials(system.unstrip_protocol(name))
            below = name.removeprefix(folder).partition("?")[0].split("/") if first_wildcard is not None else []
            flaw = HIDDEN if is_hidden(below, named=path.split("/")) else ""
            version = _version(info)
            if web:
                download = Download(system, name, shown, version)
                yield LocatedFile(shown, download.open, flaw, version.size, version=version, download=download)
            else:
                yield LocatedFile(shown, partial(system.open, name, "rb"), flaw, version.size, version=version)


def versions(urls: Iterable[str]) -> dict[str, Version]:
    """What servers say now of the files at URLs."""
    return {file.name: file.version for url in urls for file in remote_files(url) if file.version}


def _version(info: dict[str, Any]) -> Version:
    modified = next((info[key] for key in ("Last-Modified", "LastModified", "updated", "mtime") if info.get(key)), "")
    return Version(str(info.get("ETag") or info.get("etag") or ""), str(modified), info.get("size"))


def _web_options() -> dict[str, Any]:
    """Of fsspec's HTTP: the user's configuration, ~/.netrc and proxies, and an end to waiting."""
    from aiohttp import ClientTimeout
    from fsspec.config import conf

    timeout = ClientTimeout(None, sock_connect=SILENT_SECONDS, sock_read=SILENT_SECONDS)
    configured = {**conf.get("http", {}), **conf.get("https", {})}
    return {"client_kwargs": {"trust_env": True, "timeout": timeout, **configured.get("client_kwargs", {})}}


def ahead(files: Iterable[LocatedFile]) -> Iterator[LocatedFile]:
    """The files in their order, while the next ones without a flaw are downloaded: `PARROTFLOW_DOWNLOADS` at once, 4 by
    default. Downloads that are not needed any more when the caller ends are stopped."""
    todo = list(files)
    at_once = whole_number(DOWNLOADS_VARIABLE, DOWNLOADS_AT_ONCE)
    try:
        for position, file in enumerate(todo):
            for wanted in todo[position : position + at_once]:
                if wanted.download and not wanted.flaw:
                    wanted.download.start()
            yield file
            if file.download:
                file.download.end()
    finally:
        for file in todo:
            if file.download:
                file.download.end()


def forget_unfinished() -> None:
    """Delete what has arrived of files that are not whole: the corpus is collected without the rest of them."""
    shutil.rmtree(PARTS, ignore_errors=True)


class Download:
    """One file, which comes to the disk in the event loop of fsspec once it is started."""

    def __init__(self, system: Any, path: str, shown: str, version: Version) -> None:
        self.system = system
        self.path = path
        self.shown = shown
        self.version = version
        self.key = cache_key(shown, path, *map(str, version))
        self.part = PARTS / self.key
        self.available = 0
        """Bytes that a reader may read."""
        self._changed = threading.Condition()
        self._task: Future[None] | None = None
        """What downloads it; None where it has not begun, or is ended."""
        self._entry: Path | None = None
        """Where the whole file is in the cache; None also where that is not known yet."""

    def start(self) -> None:
        """Begin, if it has not begun yet and the file is not in the cache."""
        if self._task is not None or self._entry is not None:
            return
        # A server that names no version may have another file of the same size tomorrow.
        self._entry = find_cached(KIND, self.key, _move) if self.version.validator else None
        if self._entry is None:
            PARTS.mkdir(parents=True, exist_ok=True)
            if not self.version.validator:
                self.part.unlink(missing_ok=True)
            self.part.touch()
            self.available = 0
            self._task = asyncio.run_coroutine_threadsafe(self._fetch(), self.system.loop)
            self._task.add_done_callback(lambda _: self._notify(self.available))

    def open(self) -> BinaryIO:
        """The file, to be read while it arrives. Errors are raised where what has arrived ends."""
        self.start()
        if self._entry is not None:
            return (self._entry / CONTENT).open("rb")
        return cast("BinaryIO", io.BufferedReader(_Following(self), BLOCK_BYTES))

    def end(self) -> None:
        """Keep a whole file, and stop the download of another, whose beginning stays for the next run."""
        task, self._task, self._entry = self._task, None, None
        if task is None:
            return
        is_whole = task.done() and not task.cancelled() and task.exception() is None
        task.cancel()
        if not self.version.validator:
            self.part.unlink(missing_ok=True)
        elif is_whole:
            cached(KIND, self.key, partial(_move, self.part))

    def wait_beyond(self, position: int | None) -> None:
        """Wait until a byte at `position` can be read, or for the end (None). Raises why the download ended before."""
        task = cast("Future[None]", self._task)
        with self._changed:
            while not task.done() and (position is None or self.available <= position):
                if not self._changed.wait(LINE_SECONDS):
                    total = f" of {self.version.size / 1e6:,.0f}" if self.version.size else ""
                    print(f"{self.shown}: {self.available / 1e6:,.0f}{total} MB arrived", flush=True)
        if position is None or self.available <= position:
            task.result()

    def _notify(self, available: int) -> None:
        with self._changed:
            self.available = available
            self._changed.notify_all()

    async def _fetch(self) -> None:
        from aiohttp import ClientError, ClientResponseError

        broken: Exception | None = None
        while True:
            before = self.available
            try:
                await self._fetch_rest(broken)
                break
            except ClientResponseError:
                raise
            except (ClientError, TimeoutError) as error:
                # Broken off: the rest is asked for as long as some of it comes each time.
                if not self.version.validator or self.available <= before:
                    raise
                broken = error
        if self.version.size is not None and self.available != self.version.size:
            raise UnavailableError(
                f"{self.shown}: {self.available:,} bytes arrived, and its server promised {self.version.size:,}; "
                "run again"
            )

    async def _fetch_rest(self, broken: Exception | None) -> None:
        """Ask for what is not here yet; `broken` is why an earlier request ended, raised where the rest is refused."""
        have = self.part.stat().st_size
        if have and have == self.version.size:
            self._notify(have)
            return
        options = dict(self.system.kwargs)
        headers = {**options.pop("headers", {}), "Accept-Encoding": "identity"}
        if have:
            headers |= {"Range": f"bytes={have}-", "If-Range": self.version.validator}
        session = await self.system.set_session()
        async with session.get(self.system.encode_url(self.path), headers=headers, **options) as answer:
            if answer.status == RANGE_IS_EMPTY and answer.headers.get("Content-Range") == f"bytes */{have}":
                self._notify(have)
                return
            self.system._raise_not_found_for_status(answer, self.path)
            begins = answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            continues = answer.status == PARTIAL and begins
            if broken is not None and not continues:  # what a reader has had may be of another version
                raise broken
            with self.part.open("ab") as file:
                if not continues:
                    file.truncate(0)
                arrived = have if continues else 0
                self._notify(arrived)
                async for block in answer.content.iter_chunked(BLOCK_BYTES):
                    file.write(block)
                    file.flush()
                    arrived += len(block)
                    self._notify(arrived)


def _move(part: Path, folder: Path) -> None:
    part.rename(folder / CONTENT)


class _Following(io.RawIOBase):
    """Reads a file that grows, and waits for what is still to come."""

    def __init__(self, download: Download) -> None:
        self._download = download
        self._file = download.part.open("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._download.wait_beyond(self._file.tell())
        return self._file.readinto(buffer)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            self._download.wait_beyond(None)
        return self._file.seek(offset, whence)

    def close(self) -> None:
        self._file.close()
        super().close()
