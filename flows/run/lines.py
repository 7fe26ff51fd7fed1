"""Split what a program prints into lines."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

CHUNK_BYTES = 1 << 16
"""Read at once, and kept of a line that does not end."""

RENEWED_SECONDS = 5.0
"""Minimum interval between two states shown of a line that renews itself, such as a progress bar."""


@dataclass
class LineSplitter:
    """Splits a stream into lines. Of a line that renews itself by `\\r`, the newest state is shown now and then."""

    on_lines: Callable[[list[str]], None]
    """Gets all lines that one chunk completes: a call for each line would slow down a stage that prints a lot."""
    rest: bytes = b""
    every_seconds: float = RENEWED_SECONDS
    _shown: float = field(default_factory=time.monotonic)

    def feed(self, chunk: bytes) -> None:
        """Take some bytes; an empty chunk is the end."""
        *whole, rest = (self.rest + chunk).split(b"\n")
        renewed = rest.rstrip(b"\r").rfind(b"\r") + 1
        self.rest = rest[renewed:][:CHUNK_BYTES]  # all of it is split again with every chunk
        if not chunk and self.rest:
            whole, self.rest = [self.rest], b""
        elif renewed and time.monotonic() - self._shown >= self.every_seconds:
            whole.append(self.rest)
        if whole:
            self._shown = time.monotonic()
            self.on_lines([line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2] for line in whole])
