"""Archives of other people: unpacked within bounds, and nowhere but in one folder."""

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from stages.formats.revision.layout import NOT_INDEXED, PROVENANCE
from stages.formats.revision.provenance import Provenance
from stages.runtime.entry import UserError, first_line

NOT_UNPACKED = (
    *(OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError),
    *(RuntimeError, NotImplementedError),  # a .zip with a password, or of another compression
)
"""What an archive that is damaged or of another kind is found by."""

MOST_FILES = 100_000

FREE_BYTES, MOST_RATIO = 64 << 20, 50
"""An archive may unpack to the first plus the second times its own size: weights hardly shrink, text to a tenth."""

LONGEST_INDEX = 64 << 20
"""Bytes of provenance.json, which is read before anything is unpacked."""

Item = TypeVar("Item", tarfile.TarInfo, zipfile.ZipInfo)


def unpack(archive: Path, folder: Path, asked: str) -> None:
    """Unpack a .tar.gz or .zip; links and paths that lead out of the folder are not written.

    Raises UserError where it is damaged, or holds more than it may: that is checked before each file is written.
    """
    with opened_archive(archive, asked) as packed:
        if isinstance(packed, tarfile.TarFile):
            packed.extractall(folder, members=bounded(packed, archive, asked), filter="data")
        else:
            for item in bounded(packed.infolist(), archive, asked):
                packed.extract(item, folder)


def unpacked_revision(archive: Path, folder: Path) -> Path:
    """The folder of the revision in an archive. Nothing is unpacked if there is a file that its index does not list."""
    asked = str(archive)
    with opened_archive(archive, asked) as packed:
        items: Any = packed if isinstance(packed, tarfile.TarFile) else packed.infolist()
        names = {name_of(item): item for item in bounded(items, archive, asked) if not is_folder(item)}
        found = [name for name in names if name.name == PROVENANCE]
        if not found:
            raise UserError(f"{asked}: holds no {PROVENANCE}, so it is no revision of parrotflow")
        index = min(found, key=lambda name: len(name.parts))
        text = read_start(packed, index.as_posix())
    require_listed(text, [name.relative_to(index.parent) for name in names if name.is_relative_to(index.parent)], asked)
    unpack(archive, folder, asked)
    return folder / index.parent


@contextmanager
def opened_archive(archive: Path, asked: str) -> Iterator[tarfile.TarFile | zipfile.ZipFile]:
    """An archive, open. Raises UserError where it is none, or damaged."""
    try:
        with zipfile.ZipFile(archive) if zipfile.is_zipfile(archive) else tarfile.open(archive) as packed:
            yield packed
    except NOT_UNPACKED as error:
        raise UserError(f"{asked}: no .tar.gz or .zip that can be unpacked ({first_line(error)})") from None


def bounded(items: Iterable[Item], archive: Path, asked: str) -> Iterator[Item]:
    """The members in their order, until they are too many or too large together."""
    allowed, total = FREE_BYTES + MOST_RATIO * archive.stat().st_size, 0
    for number, item in enumerate(items, 1):
        total += item.size if isinstance(item, tarfile.TarInfo) else item.file_size
        if ".git" in name_of(item).parts:
            raise UserError(f"{asked}: holds {name_of(item)}, by which git could run programs")
        if number > MOST_FILES or total > allowed:
            raise UserError(
                f"{asked}: has more than {MOST_FILES:,} files, or than {allowed:,} bytes when it is unpacked: if you "
                "trust it, unpack it yourself"
            )
        yield item


def read_start(packed: tarfile.TarFile | zipfile.ZipFile, name: str) -> bytes:
    """A member's first `LONGEST_INDEX` bytes, and one more where there is more."""
    file = packed.extractfile(name) if isinstance(packed, tarfile.TarFile) else packed.open(name)
    return file.read(LONGEST_INDEX + 1) if file else b""


def name_of(item: tarfile.TarInfo | zipfile.ZipInfo) -> PurePosixPath:
    """The path of a member."""
    return PurePosixPath(item.name if isinstance(item, tarfile.TarInfo) else item.filename)


def is_folder(item: tarfile.TarInfo | zipfile.ZipInfo) -> bool:
    """Whether a member is a folder."""
    return item.isdir() if isinstance(item, tarfile.TarInfo) else item.is_dir()


def require_listed(index: bytes, paths: Iterable[PurePosixPath], asked: str) -> None:
    """Raise UserError where an archive holds a file that the revision's index does not list."""
    if len(index) > LONGEST_INDEX:
        raise UserError(f"{asked}: its {PROVENANCE} has more than {LONGEST_INDEX:,} bytes")
    try:
        known = Provenance.model_validate_json(index).files.keys() | NOT_INDEXED
    except ValueError:
        return  # that is said when the revision is read
    # What the Hub and its client add begins with a dot.
    unlisted = [path for path in paths if path.as_posix() not in known and not path.parts[0].startswith(".")]
    if unlisted:
        raise UserError(f"{asked} is damaged: {unlisted[0]} is not of this revision; nothing was unpacked")
