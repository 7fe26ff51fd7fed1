import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.formats.model_folder import weight_files
from stages.formats.rows import read_row_file
from stages.runtime.atomic import LFS_POINTER, atomic_folder, atomic_write
from stages.runtime.errors import UserError
from stages.runtime.hub import model_folder
from stages.tokenizer.train import take_over
from tests.small_project import ROOT


def write_half_and_fail(place: Path) -> None:
    with atomic_folder(place) as folder:
        (folder / "half").write_text("written")
        raise RuntimeError


def test_a_failure_leaves_the_previous_folder_as_it_was(tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.mkdir()
    (place / "previous").write_text("result")

    with pytest.raises(RuntimeError):
        write_half_and_fail(place)

    assert (place / "previous").read_text() == "result"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_appears_whole_and_what_a_kill_left_behind_is_removed(tmp_path: Path) -> None:
    left_behind = tmp_path / ".out.1.partial"
    left_behind.mkdir()
    (left_behind / "stale").write_text("half")

    with atomic_folder(tmp_path / "out") as folder:
        (folder / "deep").mkdir()
        (folder / "deep/fresh").write_text("whole")
        assert not (tmp_path / "out").exists()

    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == [
        "out",
        "out/deep",
        "out/deep/fresh",
    ]


@pytest.mark.parametrize("old", ["folder", "file", "link"])
def test_a_new_folder_replaces_what_has_its_name(tmp_path: Path, old: str) -> None:
    place, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    made: dict[str, Callable[[], None]] = {"folder": place.mkdir, "file": place.touch}
    made.get(old, lambda: place.symlink_to(elsewhere))()

    with atomic_folder(place) as folder:
        (folder / "new").touch()

    assert [path.name for path in place.iterdir()] == ["new"]
    assert list(elsewhere.iterdir()) == []


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    place = tmp_path / "reports" / "metrics.json"

    atomic_write(place, "old")
    atomic_write(place, "né\n")

    assert place.read_bytes() == "né\n".encode()
    assert [path.name for path in place.parent.iterdir()] == ["metrics.json"]


def test_a_file_that_could_not_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("old")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            atomic_write(tmp_path / "report.json", "new" * 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"report.json": "old"}


WRITES_A_FILE = """
import sys
from collections.abc import Callable
from pathlib import Path
from stages.runtime.atomic import atomic_write
for _ in range(300):
    atomic_write(Path("report.json"), sys.argv[1] * 1000)
"""


def test_of_two_runs_that_write_the_same_file_at_once_one_stays_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITES_A_FILE]
    writers = [subprocess.Popen([*command, text], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}) for text in "ab"]

    assert [writer.wait() for writer in writers] == [0, 0]
    assert (tmp_path / "report.json").read_text() in ("a" * 1000, "b" * 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("name", "open_it"),
    [
        ("rows.jsonl", lambda folder: list(read_row_file(folder / "rows.jsonl"))),
        ("model.safetensors", weight_files),
        ("model.safetensors", lambda folder: model_folder("start_from", str(folder), ["*.safetensors"])),
        ("tokenizer.json", lambda folder: take_over(folder, folder / "new")),
    ],
)
def test_a_pointer_of_git_lfs_is_refused_with_the_command_that_downloads_the_file(
    tmp_path: Path, name: str, open_it: Callable[[Path], object]
) -> None:
    (tmp_path / name).write_bytes(LFS_POINTER + b"oid sha256:4d7a\nsize 12345\n")

    with pytest.raises(UserError, match=f"^{tmp_path}/{name}: Git LFS pointer, .*`git lfs pull`"):
        open_it(tmp_path)
