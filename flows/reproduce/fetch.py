"""A published revision -> `WORK/revision`: from a folder, an archive, or the Hugging Face Hub.

Archives are other people's: unpacked within bounds, and nowhere but in one folder.
"""

import lzma
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from backports import tarfile

from flows.reproduce.revision import Revision, read_revision, require_made
from stages.formats.revision.layout import MAIN, NOT_INDEXED, PROVENANCE
from stages.formats.revision.provenance import Provenance
from stages.formats.revision.signature import verify_signature
from stages.formats.revision.verify import verify_files
from stages.runtime.atomic import atomic_folder
from stages.runtime.entry import STATE_DIR, UserError, first_line
from stages.runtime.hub import explained

WORK = STATE_DIR / "reproduce"
"""Here each revision has the folder in which it is reproduced."""

FETCHED = "revision"

HUB_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+?)(@(?P<revision>[\w./-]+))?")

OF_THE_HUB = (".gitattributes", ".cache")
"""What the Hub and its client add to the files of a revision."""


def work_folder(asked: str, found: Path, given: Path | None) -> Path:
    """Where a revision is reproduced. Raises UserError where what the user names is damaged or no revision."""
    provenance = Provenance.find(found / PROVENANCE)
    if provenance is None:
        raise UserError(f"{asked}: holds no {PROVENANCE} that can be read, so it is no revision of parrotflow")
    require_intact(asked, found)
    return (given or WORK / provenance.revision).absolute()


def keep(asked: str, found: Path, work: Path) -> Revision:
    """Copy the revision into the work folder, unless it is there, and read it.

    Raises UserError that names the file where it is damaged or is not what its record says.
    """
    kept = work / FETCHED
    if not kept.exists():
        with atomic_folder(kept) as partial:
            shutil.copytree(found, partial, dirs_exist_ok=True, copy_function=shutil.copyfile)
    elif (kept / PROVENANCE).read_bytes() != (found / PROVENANCE).read_bytes():
        raise UserError(
            f"{work}: another revision, or another publication of this one, is reproduced there; "
            "choose another folder with --folder, or delete that one"
        )
    else:
        take_signature(found, kept)
    require_intact(asked, kept)
    revision = read_revision(asked, kept)
    require_made(revision)
    return revision


def take_signature(found: Path, kept: Path) -> None:
    """Let the copy of an earlier start have what the revision has now besides its indexed files: a signature may have
    been added or removed since."""
    for name in NOT_INDEXED - {PROVENANCE}:
        if (found / name).is_file():
            shutil.copyfile(found / name, kept / name)
        else:
            (kept / name).unlink(missing_ok=True)


def require_intact(asked: str, folder: Path) -> None:
    """Raise UserError that names the files that are not as they were published."""
    faults = verify_files(folder)
    if faults:
        more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise UserError(f"{asked} is damaged: {'; '.join(map(str, faults[:3]))}{more}; fetch it again")


def check_signature(asked: str, folder: Path, key: Path | None) -> str:
    """What is known of the signature, in words.

    Raises UserError where it is not valid, or a key is named, here or by PARROTFLOW_TRUSTED_KEY, and the revision is
    not signed by it.
    """
    found = verify_signature(folder, key)
    if not found.is_acceptable(key):
        raise UserError(f"{asked}: {found}")
    return str(found)


@contextmanager
def opened(asked: str) -> Iterator[Path]:
    """A folder with the files of the revision that a user names, for as long as they are copied."""
    path = Path(asked)
    if path.is_dir():
        # `published/NAME` is where the revisions are; `main` is the current one.
        yield path if (path / PROVENANCE).exists() or not (path / MAIN).exists() else path / MAIN
    elif path.is_file():
        with TemporaryDirectory() as temporary:
            yield unpacked_revision(path, Path(temporary))
    elif found := HUB_NAME.fullmatch(asked):
        with TemporaryDirectory() as temporary:
            yield downloaded(found["repository"], found["revision"] or MAIN, Path(temporary))
    else:
        raise UserError(f"{asked}: no folder, no archive, and no owner/name@revision of the Hub")


def downloaded(repository: str, revision: str, folder: Path) -> Path:
    """The files of a revision on the Hub: of a tag, a branch or a commit. Raises as `explained` does."""
    from huggingface_hub import snapshot_download

    try:
        with explained(f"{repository}@{revision}"):
            snapshot_download(repository, revision=revision, local_dir=folder)
    except UserError as error:
        raise type(error)(f"{error}; and there is no such folder here") from None
    for added in OF_THE_HUB:
        shutil.rmtree(folder / added, ignore_errors=True)
        (folder / added).unlink(missing_ok=True)
    return folder


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
