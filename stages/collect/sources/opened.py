"""Opens one file of a source that a run needs."""

import bz2
import gzip
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from stages.collect.sources.located import LocatedFile, one_line, remote_error
from stages.runtime.entry import UserError

DECOMPRESSORS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
"""By a name's ending. Each of them checks its own checksums by the end of the file."""

NOT_READ = (".zst", ".lz4", ".7z", ".rar")


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
        if "://" in file.name:
            raise remote_error(f"{file.name}: cannot be read", error) from None
        if isinstance(error, OSError | EOFError | lzma.LZMAError):
            raise UserError(f"{file.name}: cannot be read ({one_line(error)}); correct or remove it") from None
        raise


@contextmanager
def decompressed(file: LocatedFile) -> Iterator[BinaryIO]:
    """As `opened`; a file whose name ends in .gz, .bz2 or .xz is decompressed while it is read."""
    if file.name.endswith(NOT_READ):
        raise UserError(f"{file.name}: this compression is not read; decompress it, or use .gz, .bz2 or .xz")
    with opened(file) as stream:
        open_ = next((open_ for suffix, open_ in DECOMPRESSORS.items() if file.name.endswith(suffix)), None)
        if open_ is None:
            yield stream
        else:
            with open_(stream) as content:
                yield content
