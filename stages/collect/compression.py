"""The compressions of files, undone while a file is read. Their checksums are compared by the end of the file."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from typing import BinaryIO, NamedTuple, TypeAlias, cast

BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""What a file raises that cannot be read, or is not what the ending of its name says."""


Opener: TypeAlias = Callable[[BinaryIO], BinaryIO]


class Compression(NamedTuple):
    """One of them."""

    ending: str
    magic: tuple[bytes, ...]
    """How its files begin."""
    open: Opener


def _open_zstd(stream: BinaryIO) -> BinaryIO:
    import pyarrow as pa  # slow; its reader refuses a file that is cut off, and compares a checksum where there is one

    return cast("BinaryIO", pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd"))


COMPRESSIONS = (
    Compression(".gz", (b"\x1f\x8b",), cast("Opener", gzip.open)),
    Compression(".bz2", (b"BZh",), cast("Opener", bz2.open)),
    Compression(".xz", (b"\xfd7zXZ", b"\x5d\x00\x00"), cast("Opener", lzma.open)),
    Compression(".zst", (b"\x28\xb5\x2f\xfd",), _open_zstd),
)

COMPRESSED = tuple(compression.ending for compression in COMPRESSIONS)


def by_ending(name: str, stream: BinaryIO) -> BinaryIO:
    """The content of a file, decompressed where the ending of its name (of a URL without the query) says so."""
    path = (name.partition("?")[0] if "://" in name else name).lower()
    opens = next((one.open for one in COMPRESSIONS if path.endswith(one.ending)), None)
    return opens(stream) if opens else stream


def by_magic(stream: BinaryIO) -> BinaryIO:
    """The content of a file, decompressed where its first bytes say so."""
    buffered = io.BufferedReader(cast("io.RawIOBase", stream))
    start = buffered.peek(8)
    opens = next((one.open for one in COMPRESSIONS if start.startswith(one.magic)), None)
    return opens(cast("BinaryIO", buffered)) if opens else cast("BinaryIO", buffered)
