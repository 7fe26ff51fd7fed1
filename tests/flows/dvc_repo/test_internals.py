"""Where DVC behaves differently from what this project needs."""

import contextlib
import errno
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from dvc.repo import Repo

from flows.dvc_repo.internals import locked_repo, open_repo
from tests.flows.toy import make_toy


@pytest.mark.parametrize("opened", [open_repo, locked_repo])
def test_a_full_disk_is_one_kind_of_error_whoever_meets_it(
    opened: Callable[[], AbstractContextManager[Repo]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_toy(tmp_path / "toy"))

    with contextlib.closing(sqlite3.connect(tmp_path / "small")) as small:
        small.execute("PRAGMA max_page_count = 1")
        with pytest.raises(OSError, match="No space left") as raised, opened():
            small.execute("CREATE TABLE files (hash TEXT)")

    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(sqlite3.OperationalError), opened():
        raise sqlite3.OperationalError("no such table")
