"""The flow that workers run, without a server and a worker; with both it runs in tests/flows/sweep/test_pool.py."""

import asyncio
from pathlib import Path

import pytest

from flows.checkout import CHECKOUT_VARIABLE
from flows.experiments.cells import Cell
from flows.sweep.pool import sweep_cell
from tests.flows.toy import git

CELL = Cell("0123abcd", "toy-a-0123abcd", {"recipe": "a"}, 0, {"model.name": "a"})


def test_a_machine_that_is_not_set_up_crashes_the_flow_run_so_that_no_failure_of_the_cell_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    no_clone = asyncio.run(sweep_cell.fn("0" * 40, CELL, ["train"]))

    assert no_clone.type == "CRASHED"
    assert "git remote: " in str(no_clone.message)

    git(tmp_path, "init", "-q")
    git(tmp_path, "remote", "add", "origin", str(tmp_path))
    (tmp_path / "file").touch()
    monkeypatch.setenv(CHECKOUT_VARIABLE, str(tmp_path / "file/checkout"))
    no_folder = asyncio.run(sweep_cell.fn("0" * 40, CELL, ["train"]))

    assert no_folder.type == "CRASHED"
    assert "file/checkout" in str(no_folder.message)
