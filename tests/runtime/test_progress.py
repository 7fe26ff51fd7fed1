from pathlib import Path

import pytest

from stages.runtime import workers
from stages.runtime.cache import cache_key, map_cached, map_cached_parts
from stages.runtime.workers import Progress, counted


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, seconds; each look at it lets four pass."""
    now = [0.0]

    def tick() -> float:
        now[0] += 4.0
        return now[0]

    monkeypatch.setattr(workers.time, "monotonic", tick)
    return now


def test_a_line_is_printed_every_ten_seconds_with_what_is_left(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(counted(range(7), "features", "shards", total=7)) == list(range(7))

    assert capsys.readouterr().out.splitlines() == [
        "features: 3 of 7 shards, 12 s, about 16 s left",
        "features: 6 of 7 shards, 24 s, about 4 s left",
    ]


def test_work_of_unknown_size_says_what_is_done(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    collecting = Progress("collect", "documents")
    for number in range(3):
        collecting.advance(lambda number=number: f"{number} MB")  # type: ignore[misc]

    assert capsys.readouterr().out == "collect: 3 documents, 2 MB, 12 s\n"


def test_short_work_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(counted(range(1000), "features", "shards"))) == 1000

    assert capsys.readouterr().out == ""


def test_the_shards_that_the_cache_does_not_know_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")
    monkeypatch.setattr(workers, "LINE_SECONDS", 0.0)

    def write(item: str, folder: Path) -> None:
        (folder / "result").write_text(item)

    map_cached("toy", ["a"], str, write)
    map_cached("toy", ["a", "b", "c"], str, write)

    lines = [line.partition(", ")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["toy: 1 of 1 shards", "toy: 1 of 2 shards", "toy: 2 of 2 shards"]


def test_results_that_are_computed_in_parts_are_counted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")
    monkeypatch.setattr(workers, "LINE_SECONDS", 0.0)

    map_cached_parts("features", list("abc"), cache_key, {"part": write_name}, lambda item, names: {"part": write_name})

    assert "features: 3 of 3 shards" in capsys.readouterr().out


def write_name(folder: Path) -> None:
    (folder / "name").write_text(folder.name)
