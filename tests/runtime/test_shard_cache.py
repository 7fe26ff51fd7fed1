import os
from pathlib import Path

import pytest

from stages.runtime.entry import UserError
from stages.runtime.shard_cache import CACHE, cache_key, cached, code_key, drop_unused, map_cached


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, folder: Path) -> None:
    (folder / "result").write_text(text)


def test_what_is_known_is_not_computed_again() -> None:
    first = cached("toy", cache_key("a"), lambda folder: write("first", folder))
    second = cached("toy", cache_key("a"), lambda folder: write("second", folder))

    assert first == second
    assert (second / "result").read_text() == "first"


def test_a_failure_leaves_no_entry() -> None:
    def fail(folder: Path) -> None:
        write("half", folder)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cached("toy", cache_key("a"), fail)

    assert [path for path in CACHE.rglob("*") if path.is_file()] == []
    assert (cached("toy", cache_key("a"), lambda folder: write("whole", folder)) / "result").read_text() == "whole"


def test_two_that_compute_the_same_at_once_both_succeed() -> None:
    def meanwhile_another_finishes(folder: Path) -> None:
        entry = CACHE / "toy" / cache_key("a")[:2] / cache_key("a")
        entry.mkdir(parents=True)
        write("same", entry)
        write("same", folder)

    entry = cached("toy", cache_key("a"), meanwhile_another_finishes)

    assert (entry / "result").read_text() == "same"
    assert sorted(path.name for path in entry.parent.iterdir()) == [entry.name]


def test_keys_differ_wherever_the_parts_differ() -> None:
    assert len({cache_key("ab", "c"), cache_key("a", "bc"), cache_key("abc"), cache_key("abc", "")}) == 4


def test_an_edit_of_the_code_changes_its_key(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("LIMIT = 1\n")
    before = code_key([str(module)])
    module.write_text("LIMIT = 2\n")

    assert code_key([str(module)]) != before


def test_a_limit_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_SHARD_CACHE_GB", "much")

    with pytest.raises(UserError, match="PARROTFLOW_SHARD_CACHE_GB=much: expected a number of gigabytes"):
        drop_unused("toy")


def test_only_what_is_not_known_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")
    computed: list[str] = []

    def compute(item: str, folder: Path) -> None:
        computed.append(item)
        write(item, folder)

    map_cached("toy", ["a", "b", "a"], cache_key, compute)
    entries = map_cached("toy", ["c", "b"], cache_key, compute)

    assert computed == ["a", "b", "c"]
    assert [(entry / "result").read_text() for entry in entries] == ["c", "b"]


def test_what_was_unused_for_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        entry = cached("toy", cache_key(str(number)), lambda folder: write("x" * 100, folder))
        os.utime(entry, (number, number))
    monkeypatch.setenv("PARROTFLOW_SHARD_CACHE_GB", str(250 / 1e9))

    drop_unused("toy")

    kept = {path.name for path in (CACHE / "toy").glob("??/*")}
    assert kept == {cache_key("1"), cache_key("2")}
