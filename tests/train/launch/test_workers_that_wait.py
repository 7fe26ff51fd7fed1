"""A worker that fails on purpose ends all: on GPUs the others wait for it, and nothing would tell them."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from stages.runtime.entry import EXIT_USER_ERROR
from stages.runtime.launch import launch_config
from stages.train.launch import launcher
from stages.train.params import TrainParams
from tests.train.small_run import environment, params, write_project


@pytest.mark.parametrize(("waiting", "patience"), [("nccl", 1.0), ("gloo", launcher.AFTER_FAILURE_SECONDS)])
def test_workers_that_wait_for_one_that_failed_are_ended_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: str, patience: float
) -> None:
    project = write_project(tmp_path / "project")
    monkeypatch.setattr(launcher, "WORKER", "tests.train.launch.one_fails")
    monkeypatch.setattr(launcher, "AFTER_FAILURE_SECONDS", patience)

    def command() -> None:
        os.chdir(project)
        os.environ.update(environment(PARROTFLOW_LAUNCH="cpu_2", WAITING=waiting))
        raise SystemExit(launcher.launch(launch_config(), TrainParams.model_validate(params())))

    process = multiprocessing.get_context("fork").Process(target=command)
    process.start()
    process.join(timeout=120)
    assert process.exitcode == EXIT_USER_ERROR
    assert time.time() - float((project / "failed").read_text(encoding="utf-8")) < 30


def test_by_default_all_have_ended_within_half_a_minute() -> None:
    assert launcher.AFTER_FAILURE_SECONDS + 5 < 30
