"""Jobs of this machine: what they see of it, and why one failed."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows.experiments.cells import Cell
from flows.sweep.jobs import Ended, Job, Progress
from flows.sweep.processes import THREADS, VISIBLE, Processes, cores, gpus, shares_of, why_it_failed
from tests.flows.toy import make_toy
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("at_once", "devices", "shares"),
    [
        (1, ["0", "1"], [{}]),
        (2, ["0", "1"], [{VISIBLE: "0"}, {VISIBLE: "1"}]),
        (2, ["2", "5", "6", "7"], [{VISIBLE: "2,5"}, {VISIBLE: "6,7"}]),
        (3, ["0"], [{VISIBLE: "0"}] * 3),
        (2, [], [{THREADS: "4"}] * 2),
    ],
)
def test_what_runs_at_once_divides_the_gpus_or_the_cores(
    at_once: int, devices: list[str], shares: list[dict[str, str]]
) -> None:
    assert shares_of(at_once, devices, 8) == shares


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("3,GPU-1a", ["3", "GPU-1a"]),
        (" 3, MIG-GPU-1a/1/0 ", ["3", "MIG-GPU-1a/1/0"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,-1,2", ["1"]),
    ],
)
def test_the_gpus_are_those_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch, visible: str, found: list[str]
) -> None:
    monkeypatch.setenv(VISIBLE, visible)

    assert gpus() == found


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot limit a process to some cores")
def test_the_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THREADS, raising=False)
    first = min(os.sched_getaffinity(0))
    script = f"import os; os.sched_setaffinity(0, [{first}]); from flows.sweep.processes import cores; print(cores())"

    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "1"
    monkeypatch.setenv(THREADS, "1,4")
    assert cores() == 1


def test_what_a_failed_job_leaves_in_its_process_group_ends_with_it(tmp_path: Path) -> None:
    script = "stages:\n  one: {cmd: 'sleep 600 & echo $! > left.txt; exit 1', outs: [out.txt]}\n"
    folder = make_toy(tmp_path / "toy", script)
    (folder / ".parrotflow").mkdir()
    cell = Cell("a", "cell-a", {}, 0, {})
    progress = Progress("sweep toy", {"a": cell})
    work = Processes({"a": folder}, [{}], progress).start(Job("key", ("a",), ("one",)))
    assert work is not None
    progress.started(work.job)

    ended = wait_until(work.poll)

    assert ended.state == "failed"
    left = int((folder / "left.txt").read_text())
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("said", "ended"),
    [
        ("exited with 1", Ended("failed", "train: no luck")),
        ("exited with 75", Ended("cancelled", "train: no luck")),
        ("exited with -15", Ended("cancelled", "train: no luck")),
        (
            "exited with 137",
            Ended("cancelled", "train: was killed (SIGKILL); if the memory ran out, run fewer cells at once"),
        ),
    ],
)
def test_a_failure_is_told_in_the_stages_words_and_is_no_failure_if_it_may_pass(said: str, ended: Ended) -> None:
    lines = ["Running stage 'train':", "> python train.py", "error: train: no luck"]
    lines.append(f"ERROR: failed to reproduce 'train': failed to run: python train.py, {said}")

    assert why_it_failed(lines, 255) == ended


def test_a_failure_of_dvcs_own_is_told_in_its_words() -> None:
    said = "failed to reproduce 'train': missing data 'source': other.txt"

    assert why_it_failed([f"ERROR: {said}"], 255) == Ended("failed", f"train: {said}")
