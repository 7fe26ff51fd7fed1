"""Opens the files of sources, with one message that names a file that breaks off while it is read."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from stages.collect.compression import BROKEN, COMPRESSED, by_ending
from stages.collect.located import LocatedFile, one_line
from stages.collect.remote import remote_error
from stages.runtime.entry import UserError

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
