"""Members of .zip and .tar archives, read without writing any of them to the disk."""

import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, BinaryIO, Literal, Self, cast

from stages.collect.located import HIDDEN, NOT_REGULAR, LocatedFile, by_magic, has_ending, is_hidden, one_line, opened
from stages.collect.source_kinds import TOO_LARGE, Bytes, FileSource, SourceItem
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

Members = Iterator[tuple[str, int, IO[bytes] | None]]
"""Name, size in bytes and content of each member; no content where it is not a regular file."""


class Archives(FileSource):
    """Text files in .zip and .tar archives (also .tar.gz, .bz2, .xz, .zst), read without unpacking to the disk."""

    kind: Literal["archives"]
    suffixes: list[str]
    """Endings of the members to take, e.g. `.py`; empty takes all."""
    max_unpacked_bytes: Bytes
    """An archive that unpacks to more is refused: a decompression bomb, or a limit to raise on purpose."""

    def items_of(self, file: LocatedFile, limit: int) -> Iterator[SourceItem]:
        """Each member, in the archive's order. Raises UserError for what is not an archive, a bomb, and a damaged or
        truncated archive: it never gives fewer members than it was made with."""
        read = _zip_members if has_ending(file.name, ".zip") else _tar_members
        unpacked = 0
        with opened(file) as stream:
            try:
                for name, size, content in read(stream, self.max_unpacked_bytes):
                    if name.endswith("/") or (self.suffixes and not name.endswith(tuple(self.suffixes))):
                        continue
                    path = f"{file.name}!{name}"
                    reason = _why_not(name) or (TOO_LARGE if size > limit and content is not None else "")
                    if reason or content is None:
                        yield self.left_out(path, reason or NOT_REGULAR)
                        continue
                    text = content.read(limit + 1)
                    unpacked += len(text)
                    if unpacked > self.max_unpacked_bytes:
                        raise UserError(
                            f"{file.name}: unpacks to more than max_unpacked_bytes = {self.max_unpacked_bytes:,}; "
                            "raise the limit if this is not a decompression bomb"
                        )
                    yield self.item(path, text)
            except BROKEN as error:
                raise UserError(f"{file.name}: no readable archive ({one_line(error)}); correct or remove it") from None


def _zip_members(file: BinaryIO, _: int) -> Members:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            with archive.open(info) as content:
                # What Unix wrote into an archive has its mode; a link's content is the path that it leads to.
                is_link = stat.S_ISLNK(info.external_attr >> 16)
                yield info.filename, info.file_size, None if is_link else content


def _tar_members(file: BinaryIO, limit: int) -> Members:
    # Decompressed here: tarfile's own streams (`r|gz`) check no checksum.
    content = by_magic(file)
    with tarfile.open(fileobj=content, mode="r|", tarinfo=_Header) as archive:
        for info in archive:
            # Even a member that is not wanted must be decompressed to come to the next one.
            if archive.offset > limit:
                raise tarfile.ReadError(f"unpacks to more than max_unpacked_bytes = {limit:,}")
            if not info.isdir():
                yield info.name, info.size, archive.extractfile(info) if info.isreg() else None
        _check_end(archive, limit)


def _check_end(archive: tarfile.TarFile, limit: int) -> None:
    """Read an archive whose first closing block was met to its end, which checks the checksums of its compression. Two
    blocks of zeros close an archive (POSIX.1-1988, ustar), then only zeros may follow."""
    stream = cast("BinaryIO", archive.fileobj)
    size = 0
    while block := stream.read(tarfile.RECORDSIZE):
        size += len(block)
        if block.strip(b"\0"):
            raise tarfile.ReadError("data after its end")
        if archive.offset + size > limit:
            raise tarfile.ReadError(f"unpacks to more than max_unpacked_bytes = {limit:,}")
    if size < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("cut off: the second of its closing blocks is missing")


class _Header(tarfile.TarInfo):
    """A header that is read or refused: tarfile alone takes a damaged one for the end of the archive, and holds long
    names and attributes in memory before anybody sees the member."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except (tarfile.EmptyHeaderError, tarfile.TruncatedHeaderError, tarfile.InvalidHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"damaged or cut off at byte {archive.offset:,} ({error})") from None

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in LONG_HEADERS and header.size > LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {header.size:,} bytes")
        return header


def _why_not(name: str) -> str:
    """Members are never written, but a path outside the archive is no honest provenance."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        return "path outside the archive"
    return HIDDEN if is_hidden(path.parts) else ""
