"""Members of .zip and .tar archives, read without writing any of them to the disk."""

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, BinaryIO, Self

from stages.collect.params import Archives
from stages.collect.raw import LeftOut, Raw
from stages.collect.sources.opened import one_line, opened
from stages.collect.sources.places import Place, find
from stages.runtime.entry import UserError

BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(EOFError, OSError, RuntimeError, TypeError, UnicodeError),
)
"""What the libraries raise for a damaged, truncated, encrypted or unknown archive."""

LONG_HEADERS = {
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
}
LONGEST_HEADER = 2**20


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of an archive."""

    name: str
    reason: str
    """Why it is left out without being read; empty where it is read."""
    content: bytes


def read_archives(source: Archives, max_document_bytes: int) -> Iterator[Raw | LeftOut]:
    """Each member as one document, in the archive's order. Raises UserError for what is no archive, or a bomb."""
    for place in find(source.globs):
        unpacked = 0
        for member in _members(place, source, max_document_bytes):
            unpacked += len(member.content)
            if unpacked > source.max_unpacked_bytes:
                raise UserError(
                    f"{place.name}: unpacks to more than max_unpacked_bytes = {source.max_unpacked_bytes:,}; "
                    "raise the limit if this is no decompression bomb"
                )
            path = f"{place.name}!{member.name}"
            if member.reason:
                yield LeftOut(source.name, path, member.reason)
            else:
                yield Raw(source.name, source.revision, path, source.license, member.content)


def _members(place: Place, source: Archives, limit: int) -> Iterator[Member]:
    read = _zip_members if place.name.endswith(".zip") else _tar_members
    with opened(place) as file:
        try:
            for name, size, stream in read(file, source.max_unpacked_bytes):
                if name.endswith("/") or not _wanted(name, source.suffixes):
                    continue
                if reason := _unsafe(name) or ("no regular file" if stream is None else ""):
                    yield Member(name, reason, b"")
                elif size > limit:
                    yield Member(name, "larger than max_document_bytes", b"")
                elif stream is not None:
                    yield Member(name, "", stream.read(limit + 1))
        except BROKEN as error:
            raise UserError(f"{place.name}: no readable archive ({one_line(error)}); correct or remove it") from None


def _zip_members(file: BinaryIO, _: int) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            with archive.open(info) as stream:
                yield info.filename, info.file_size, stream


def _tar_members(file: BinaryIO, limit: int) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    with tarfile.open(fileobj=file, mode="r|*", tarinfo=_Header) as archive:
        for info in archive:
            # Even a member that is not wanted must be decompressed to come to the next one.
            if archive.offset > limit:
                raise tarfile.ReadError(f"unpacks to more than max_unpacked_bytes = {limit:,}")
            if not info.isdir():
                yield info.name, info.size, archive.extractfile(info) if info.isreg() else None


class _Header(tarfile.TarInfo):
    """A header whose names and attributes are short: tarfile holds them in memory before anybody sees the member."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in LONG_HEADERS and header.size > LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {header.size:,} bytes")
        return header


def _wanted(name: str, suffixes: list[str]) -> bool:
    return not suffixes or name.endswith(tuple(suffixes))


def _unsafe(name: str) -> str:
    """Members are never written, but a path outside the archive is no honest provenance."""
    path = PurePosixPath(name)
    return "path outside the archive" if path.is_absolute() or ".." in path.parts or "\\" in name else ""
