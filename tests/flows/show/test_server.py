"""The key of the project's server."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flows.show.server import KEY, key


@pytest.fixture(autouse=True)
def in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    KEY.parent.mkdir(parents=True)


def test_runs_that_begin_at_once_have_the_same_key_which_its_owner_alone_can_read() -> None:
    with ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(lambda _: key(), range(8)))

    assert keys == {KEY.read_text(encoding="utf-8")}
    assert KEY.stat().st_mode & 0o077 == 0


def test_a_key_that_a_kill_left_empty_is_made_anew() -> None:
    KEY.touch()

    assert len(key()) >= 24
    assert key() == KEY.read_text(encoding="utf-8")
