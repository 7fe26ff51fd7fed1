"""The trainings of one GPU by every way run to their end on a CPU with a tiny model: none is tried first on a GPU."""

import multiprocessing
import re
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_runs
from tests.train.small_run import write_project


def measure(log: Path, project: Path, *arguments: str) -> None:
    """In a process of its own, with the tokens of a small project."""
    sys.stdout = log.open("w", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_runs, "DATA", project / "data")
        gpu_runs.main(arguments)
    sys.stdout.flush()


@pytest.mark.acceptance
def test_each_loss_is_shown_beside_that_of_the_run_that_it_must_agree_with(tmp_path: Path) -> None:
    project, log = write_project(tmp_path / "project"), tmp_path / "log"
    arguments = ("--try-on-cpu", "--at-once", "2", "--steps", "2", "--only", "fp32", "fp32 fsdp2")
    process = multiprocessing.get_context("fork").Process(target=measure, args=(log, project, *arguments))
    process.start()
    process.join()
    said = log.read_text(encoding="utf-8")
    assert process.exitcode == 0, said
    losses = {name: float(loss) for name, loss in re.findall(r"^([\w ]+): Result\(losses={.*2: ([\d.]+)}", said, re.M)}
    assert losses["fp32"] == pytest.approx(losses["fp32 fsdp2"], abs=1e-5)
    assert "(fp32)" in said


def test_every_run_is_compared_with_one_that_there_is() -> None:
    compared_with = {run.like for run in gpu_runs.RUNS.values()} | {*gpu_runs.TIMED, *gpu_runs.TIMED.values()}
    assert compared_with - {""} <= set(gpu_runs.RUNS)
