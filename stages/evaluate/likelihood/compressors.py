"""The held-out text compressed by general-purpose compressors, in bits per byte: what no model should exceed."""

import lzma
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

GZIP = 31
"""zlib's `wbits` for a gzip container with the largest window."""


@dataclass(frozen=True, slots=True)
class Compressed:
    """Bits per byte of the documents' text, compressed as one stream, headers and checksums included."""

    gzip_9: float
    xz_9: float


def compress(texts: Iterable[str]) -> Compressed:
    """Compress the texts in the order given, as `gzip -9` and `xz -9` would."""
    gzip = zlib.compressobj(level=9, wbits=GZIP)
    xz = lzma.LZMACompressor(preset=9)
    text_bytes = gzip_bytes = xz_bytes = 0
    for text in texts:
        encoded = text.encode("utf-8")
        text_bytes += len(encoded)
        gzip_bytes += len(gzip.compress(encoded))
        xz_bytes += len(xz.compress(encoded))
    gzip_bytes += len(gzip.flush())
    xz_bytes += len(xz.flush())
    return Compressed(gzip_9=8 * gzip_bytes / text_bytes, xz_9=8 * xz_bytes / text_bytes)
