"""Opens the files of sources, decompressed, with one message that names a file that breaks off while it is read.

Checksums of compressed files are compared by the end of the file.
"""

import bz2
import errno
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple, TypeAlias, cast

from stages.collect.located import LocatedFile, one_line
from stages.collect.remote import remote_error
from stages.runtime.entry import UserError

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


NOT_READ = (".lz4", ".7z", ".rar")


@contextmanager
def opened(file: LocatedFile) -> Iterator[BinaryIO]:
    """A file to read. Raises UserError that names it if it is not a regular file or breaks off while it is read."""
    if file.flaw:
        raise UserError(f"{file.name}: {file.flaw}; correct or remove it")
    try:
        with file.open() as stream:
            yield stream
    except UserError:
        raise
    except Exception as error:  # each file system of fsspec has errors of its own
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # of this machine, on which it is downloaded
        if "://" in file.name:
            raise remote_error(f"{file.name}: cannot be read", error) from None
        if isinstance(error, BROKEN):
            raise UserError(f"{file.name}: cannot be read ({one_line(error)}); correct or remove it") from None
        raise


@contextmanager
def decompressed(file: LocatedFile) -> Iterator[BinaryIO]:
    """As `opened`; a file whose name ends in .gz, .bz2, .xz or .zst is decompressed while it is read."""
    if file.name.endswith(NOT_READ):
        raise UserError(
            f"{file.name}: this compression is not read; decompress it, or use {', '.join(COMPRESSED[:-1])} "
            f"or {COMPRESSED[-1]}"
        )
    with opened(file) as stream, by_ending(file.name, stream) as content:
        yield content
