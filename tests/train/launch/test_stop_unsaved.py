"""A stop after which one process could not save: all processes say so, so that the run does not report it as saved."""

import errno
import os
from pathlib import Path

import pytest

from stages.runtime.entry import EXIT_TERMINATED
from stages.runtime.supervision import VARIABLE, Supervision
from stages.train import worker
from stages.train.checkpoint import checkpoints
from tests.train.small_run import run_workers, write_project


def main_without_room() -> None:
    """The worker, where the main process finds its disk full when it completes a checkpoint."""

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if os.environ["RANK"] == "0":
        checkpoints.write_manifest = full
    worker.main()


def test_where_one_of_two_processes_could_not_save_both_end_with_the_code_for_that(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    project = write_project(tmp_path / "project")
    command = Supervision()
    command.ask_to_stop()
    run_workers(project, 2, main_without_room, EXIT_TERMINATED, **{VARIABLE: str(command.folder)})
    command.close()
    said = capfd.readouterr().out
    assert "stopped on request, its last steps could not be saved; the same command continues" in said
    assert not list(project.glob(".parrotflow/checkpoints/*/step-*"))
