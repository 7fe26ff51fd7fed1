"""Silent corruption of DVC's cache is not restored as a result."""

from pathlib import Path

import pytest

from flows.dvc_repo.cache import drop_damaged
from tests.flows.toy import make_toy, repro

CACHE = Path(".dvc/cache/files/md5")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline that ran with the source `0123456789`, then with another one."""
    folder = make_toy(tmp_path / "toy")
    repro(folder)
    (folder / "source.txt").write_text("abc\n")
    repro(folder)
    monkeypatch.chdir(folder)
    return folder


def damage(text: str) -> Path:
    """Damage the cache's file with that content, unnoticed by DVC."""
    entry = next(path for path in CACHE.rglob("*") if path.is_file() and path.read_text() == text)
    entry.chmod(0o644)
    entry.write_text("wrong")
    entry.chmod(0o444)
    return entry


def test_what_the_run_cache_would_restore_is_checked_when_the_stages_turn_comes(toy: Path) -> None:
    entry = damage("012")  # left.txt of the first run
    (toy / "source.txt").write_text("0123456789\n")
    assert drop_damaged("left") == []  # its input is not there yet
    repro(toy, "--single-item", "first")

    assert drop_damaged("left") == ["left.txt"]
    assert not entry.exists()
    repro(toy)
    assert (toy / "left.txt").read_text() == "012"


def test_a_missing_result_is_checked_before_it_is_restored(toy: Path) -> None:
    damage((toy / "left.txt").read_text())
    assert drop_damaged("left") == []  # it is in the workspace: nothing is read
    (toy / "left.txt").unlink()

    assert drop_damaged("left") == ["left.txt"]


def test_every_file_of_a_folder_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "mkdir -p out && cp source.txt out/a && echo b > out/b"
    folder = make_toy(tmp_path / "toy", f"stages:\n  one: {{cmd: {command}, deps: [source.txt], outs: [out]}}\n")
    repro(folder)
    monkeypatch.chdir(folder)
    damage("b\n")
    (folder / "out/a").unlink()

    assert drop_damaged("one") == ["out"]
    repro(folder)
    assert (folder / "out/b").read_text() == "b\n"
