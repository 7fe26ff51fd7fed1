"""Archives of other people: what they may hold."""

import io
import tarfile
from pathlib import Path

import pytest

from flows.reproduce.checkout import unpack
from stages.runtime.errors import UserError

MANY_ZEROS = 80 << 20


def packed(archive: Path, *names: str, content: bytes = b"") -> Path:
    with tarfile.open(archive, "w:gz") as opened:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            opened.addfile(entry, io.BytesIO(content))
    return archive


def test_an_archive_that_would_become_far_larger_is_not_unpacked(tmp_path: Path) -> None:
    archive = packed(tmp_path / "source.tar.gz", "weights.bin", content=bytes(MANY_ZEROS))
    assert archive.stat().st_size < 200_000

    with pytest.raises(UserError, match=r"or [\d,]+ bytes unpacked; if you trust it"):
        unpack(archive, tmp_path / "out", "source.tar.gz")

    assert not list((tmp_path / "out").rglob("weights.bin"))


@pytest.mark.parametrize(
    "name",
    ["main/.git/config", ".dvc/cache/files/1", ".dvc/config.local", ".parrotflow/a", "data/code/train.json"],
)
def test_what_git_would_run_and_results_are_not_unpacked(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"holds {name}, which is neither code nor data"):
        unpack(packed(tmp_path / "source.tar.gz", name), tmp_path / "out", "source.tar.gz")

    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_a_link_is_not_unpacked(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "source.tar.gz", "w:gz") as opened:
        entry = tarfile.TarInfo(".dvc")
        entry.type, entry.linkname = tarfile.SYMTYPE, "stages"
        opened.addfile(entry)

    with pytest.raises(UserError, match=r"holds \.dvc, which is neither"):
        unpack(tmp_path / "source.tar.gz", tmp_path / "out", "source.tar.gz")


@pytest.mark.parametrize("name", ["../outside.txt", "stages/../../outside.txt", "{folder}/outside.txt"])
def test_an_archive_that_would_write_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    named = name.format(folder=tmp_path)
    with pytest.raises(UserError, match=r"bad\.tar\.gz: holds .*outside\.txt, which is neither code nor data"):
        unpack(packed(tmp_path / "bad.tar.gz", named, content=b"x"), tmp_path / "out", "bad.tar.gz")

    assert not (tmp_path / "outside.txt").exists()


def test_a_damaged_archive_ends_with_a_message(tmp_path: Path) -> None:
    archive = packed(tmp_path / "source.tar.gz", "a", content=bytes(range(256)))
    damaged = bytearray(archive.read_bytes())
    damaged[20:60] = b"\xff" * 40
    archive.write_bytes(damaged)

    with pytest.raises(UserError, match="cannot be unpacked"):
        unpack(archive, tmp_path / "out", "source.tar.gz")


def test_more_files_than_a_revision_can_have_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.reproduce.checkout.MAX_FILES", 3)
    with tarfile.open(tmp_path / "many.tar.gz", "w:gz") as opened:
        for number in range(5):
            opened.addfile(tarfile.TarInfo(f"file{number}"))

    with pytest.raises(UserError, match="has more than 3 files"):
        unpack(tmp_path / "many.tar.gz", tmp_path / "out", "many.tar.gz")

    assert len(list((tmp_path / "out").iterdir())) == 3, "what came before is unpacked"
