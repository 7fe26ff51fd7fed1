"""Files of HTTP: several at once, continued after a kill or a break, fetched again only if they changed."""

import http.server
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stages.collect.__main__ import main
from stages.collect.download import KIND, PARTS
from stages.formats.documents import read_documents
from stages.runtime.cache import CACHE
from tests.small_project import FILES_SOURCE, ROOT, write_project

SIZE = 600_000
"""Bytes of each file: more than what a socket holds."""


class Server(http.server.ThreadingHTTPServer):
    """Serves any path with a text of its own, its version and ranges of it (RFC 9110, 14), and notes what is asked."""

    daemon_threads = True
    version: str | None = '"1"'
    """The ETag; None: it gives none, and no ranges."""
    breaks_at: int | None = None
    """Bytes after which it ends an answer, or stops sending where it `stalls`."""
    stalls = False
    together: threading.Barrier | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str | None]] = []
        """Method and range of each request."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def text(self, path: str) -> bytes:
        line = f"{path} {self.version}\n".encode()
        return (line * SIZE)[:SIZE]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self._head(200, SIZE)

    def do_GET(self) -> None:
        server = self.server
        if server.together is not None:
            server.together.wait(20)
        start = 0
        if server.version and (asked := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))):
            start = int(asked[1]) if self.headers["If-Range"] == server.version else 0
        content = server.text(self.path)[start:]
        self._head(206 if start else 200, len(content), f"bytes {start}-{SIZE - 1}/{SIZE}" if start else "")
        self.wfile.write(content[: server.breaks_at])
        self.wfile.flush()
        while server.breaks_at and server.stalls:
            time.sleep(0.1)

    def _head(self, status: int, size: int, content_range: str = "") -> None:
        self.server.asked.append((self.command, self.headers.get("Range")))
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        if self.server.version:
            self.send_header("ETag", self.server.version)
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.chdir(tmp_path)
    with Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def write_params(server: Server, *names: str) -> None:
    globs = [f"{server.address}/{name}" for name in names]
    write_project(Path(), collect__sources=[FILES_SOURCE | {"globs": globs}], collect__shard_bytes=10**7)


def collected(server: Server, *names: str) -> dict[str, bytes]:
    """Path -> text."""
    write_params(server, *names)
    main()
    found = read_documents(Path("data/documents"))
    return {document.path.removeprefix(server.address): document.text.encode() for document in found}


def gets(server: Server) -> list[str | None]:
    return [asked for method, asked in server.asked if method == "GET"]


def test_several_files_are_downloaded_at_once_and_nothing_of_them_is_left_unfinished(server: Server) -> None:
    server.together = threading.Barrier(4)

    found = collected(server, "a.txt", "b.txt", "c.txt", "d.txt")

    assert found == {f"/{name}.txt": server.text(f"/{name}.txt") for name in "abcd"}
    assert not PARTS.exists()


@pytest.mark.parametrize(("version", "asked"), [('"1"', "bytes=400000-"), ('"2"', None)])
def test_a_killed_run_continues_where_the_download_had_come_unless_the_file_changed(
    server: Server, version: str, asked: str | None
) -> None:
    server.breaks_at, server.stalls = 400_000, True
    write_params(server, "a.txt")
    run = subprocess.Popen(
        [sys.executable, "-m", "stages.collect"], env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True
    )
    while not (parts := list(PARTS.glob("*"))) or parts[0].stat().st_size < 400_000:
        assert run.poll() is None
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    server.breaks_at, server.stalls, server.version = None, False, version

    assert collected(server, "a.txt") == {"/a.txt": server.text("/a.txt")}
    assert gets(server) == [None, asked]


def test_an_answer_that_breaks_off_is_continued_in_the_same_run(server: Server) -> None:
    server.breaks_at = 250_000

    assert collected(server, "a.txt") == {"/a.txt": server.text("/a.txt")}
    assert gets(server) == [None, "bytes=250000-", "bytes=500000-"]


def test_an_unchanged_file_is_asked_for_its_version_alone_and_a_changed_one_is_fetched(server: Server) -> None:
    collected(server, "a.txt", "b.txt")
    server.asked.clear()

    collected(server, "a.txt", "b.txt")
    assert server.asked == [("HEAD", None)] * 2

    server.version = '"2"'
    assert collected(server, "a.txt")["/a.txt"] == server.text("/a.txt")
    assert gets(server) == [None]


def test_a_file_whose_server_names_no_version_is_fetched_each_time(server: Server) -> None:
    server.version = None
    for _ in range(2):
        assert collected(server, "a.txt") == {"/a.txt": server.text("/a.txt")}

    assert gets(server) == [None, None]
    assert list((CACHE / KIND).glob("??/*")) == []
