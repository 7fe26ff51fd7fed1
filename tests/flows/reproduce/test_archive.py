"""Archives of other people: what they may hold."""

import tarfile
import zipfile
from pathlib import Path

import pytest

from flows.reproduce.fetch import unpack, unpacked_revision
from stages.formats.revision.layout import PROVENANCE
from stages.formats.revision.provenance import Provenance
from stages.runtime.entry import UserError

MANY_ZEROS = 80 << 20


@pytest.fixture
def revision(tmp_path: Path) -> Path:
    folder = tmp_path / "main"
    folder.mkdir()
    Provenance(
        revision="r",
        files={"weights.bin": "0"},
        weights_sha256="0",
        git=None,
        pipeline=[],
        not_in_lock=[],
        publish={},
        versions={},
        training=None,
        published_from={},
    ).write(folder / PROVENANCE)
    (folder / "weights.bin").write_bytes(b"w")
    return folder


def packed(folder: Path, archive: Path) -> Path:
    files = sorted(folder.iterdir(), reverse=True)  # the index is not first
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
            for file in files:
                opened.write(file, f"main/{file.name}")
    else:
        with tarfile.open(archive, "w:gz") as opened_tar:
            for file in files:
                opened_tar.add(file, f"main/{file.name}")
    return archive


KINDS = pytest.mark.parametrize("name", ["revision.zip", "revision.tar.gz"])


@KINDS
def test_an_archive_that_would_become_far_larger_is_not_unpacked(revision: Path, tmp_path: Path, name: str) -> None:
    (revision / "weights.bin").write_bytes(bytes(MANY_ZEROS))
    archive = packed(revision, tmp_path / name)
    assert archive.stat().st_size < 200_000

    for unpacking in (unpacked_revision, lambda path, folder: unpack(path, folder, "source.tar.gz")):
        with pytest.raises(UserError, match=r"or than [\d,]+ bytes when it is unpacked: if you trust it"):
            unpacking(archive, tmp_path / "out")

    assert not list((tmp_path / "out").rglob("weights.bin"))


@KINDS
def test_what_git_would_read_is_not_unpacked(revision: Path, tmp_path: Path, name: str) -> None:
    (revision / ".git").mkdir()
    (revision / ".git/config").write_text("[core]\n\tfsmonitor = touch run\n")

    with pytest.raises(UserError, match=r"holds .*\.git.*, by which git could run programs"):
        unpack(packed(revision, tmp_path / name), tmp_path / "out", "source.tar.gz")

    assert not list((tmp_path / "out").rglob("config"))


@KINDS
def test_a_file_that_the_index_does_not_list_ends_it_before_anything_is_unpacked(
    revision: Path, tmp_path: Path, name: str
) -> None:
    (revision / "added.py").write_text("")

    with pytest.raises(UserError, match=r"is damaged: added\.py is not of this revision; nothing was unpacked"):
        unpacked_revision(packed(revision, tmp_path / name), tmp_path / "out")

    assert not (tmp_path / "out").exists()


@KINDS
def test_an_archive_of_a_whole_revision_is_unpacked(revision: Path, tmp_path: Path, name: str) -> None:
    folder = unpacked_revision(packed(revision, tmp_path / name), tmp_path / "out")

    assert folder == tmp_path / "out/main"
    assert (folder / "weights.bin").read_bytes() == b"w"


def test_more_files_than_a_revision_can_have_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.reproduce.fetch.MOST_FILES", 3)
    with tarfile.open(tmp_path / "many.tar.gz", "w:gz") as opened:
        for number in range(5):
            opened.addfile(tarfile.TarInfo(f"file{number}"))

    with pytest.raises(UserError, match="has more than 3 files"):
        unpack(tmp_path / "many.tar.gz", tmp_path / "out", "many.tar.gz")

    assert len(list((tmp_path / "out").iterdir())) == 3
