"""Files over HTTP on the loopback interface, from a server that fails every now and then."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import ClassVar
from urllib.parse import unquote

SILENCE_SECONDS = 0.3


class BrokenServer:
    """Serves a folder; `share` of the requests go wrong in one of the ways of `faults`.

    `500`, `503`: that status; `cut`: half of the file; `silence`: nothing for a while, then the connection closes;
    `flip`: one bit of the file is another.
    """

    def __init__(self, folder: Path, faults: list[str], share: float, chance: Random) -> None:
        self.folder, self.faults, self.share = folder, faults, share
        self.requests = self.broken = 0
        self._chance, self._lock = chance, threading.Lock()

    def __enter__(self) -> "BrokenServer":
        handler = type("OneServersHandler", (Handler,), {"files": self})
        self._server = Server(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fault(self) -> tuple[str, float]:
        """How the next request goes wrong, empty where it does not; and a random number for it."""
        with self._lock:
            self.requests += 1
            is_broken = self._chance.random() < self.share
            self.broken += is_broken
            return self._chance.choice(self.faults) if is_broken else "", self._chance.random()


class Server(ThreadingHTTPServer):
    """Without a word where a client goes away."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of files."""

    protocol_version = "HTTP/1.1"
    files: ClassVar[BrokenServer]

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """A file, or a fault."""
        fault, number = self.files.fault()
        file = self.files.folder / unquote(self.path).lstrip("/")
        content = bytearray(file.read_bytes()) if file.is_file() else bytearray()
        if fault == "silence":
            time.sleep(SILENCE_SECONDS)
            self.close_connection = True
            return
        status = int(fault) if fault.isdigit() else 200 if file.is_file() else 404
        if status != 200:
            content.clear()
        if fault == "flip" and content:
            content[int(number * len(content))] ^= 1
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
        self.close_connection |= fault == "cut"

    do_HEAD = do_GET  # noqa: N815 (the name that http.server calls)
