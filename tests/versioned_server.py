"""A server of HTTP that names the version of what it has, sends ranges, and breaks off or stalls where a test wants."""

import http.server
import re
import threading
import time
from typing import Any

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
            server.together.wait(100)
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
