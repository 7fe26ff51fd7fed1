from pathlib import Path

import pytest

from stages.formats.atomic import whole_folder, write_whole_file
from stages.formats.entry import UserError


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    place = tmp_path / "out"

    with whole_folder(place) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("content")
        assert not place.exists()

    assert (place / "deep" / "file").read_text() == "content"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def write_half_and_fail(place: Path) -> None:
    with whole_folder(place) as folder:
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


def test_what_a_kill_left_behind_is_not_taken_over(tmp_path: Path) -> None:
    left_behind = tmp_path / ".out.partial"
    left_behind.mkdir()
    (left_behind / "stale").write_text("half")

    with whole_folder(tmp_path / "out") as folder:
        (folder / "fresh").write_text("whole")

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["fresh"]


def test_two_runs_at_once_do_not_mix_the_second_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "out"

    with whole_folder(place) as folder:
        (folder / "first").write_text("run")
        with pytest.raises(UserError, match=r"\.out\.partial: another run is writing here; wait for it to end"):
            write_half_and_fail(place)

    assert [path.name for path in place.iterdir()] == ["first"]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    place = tmp_path / "reports" / "metrics.json"

    write_whole_file(place, "old")
    write_whole_file(place, "né\n")

    assert place.read_bytes() == "né\n".encode()
    assert [path.name for path in place.parent.iterdir()] == ["metrics.json"]
