"""Where DVC behaves differently from what this project needs."""

import errno
import sqlite3
from pathlib import Path

import pytest

from flows.dvc_repo.internals import locked_repo
from tests.flows.toy import make_toy


def test_a_full_disk_is_one_kind_of_error_whoever_meets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_toy(tmp_path / "toy"))

    with pytest.raises(OSError, match="No space left") as raised, locked_repo():
        raise sqlite3.OperationalError("database or disk is full")

    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(sqlite3.OperationalError), locked_repo():
        raise sqlite3.OperationalError("no such table")
