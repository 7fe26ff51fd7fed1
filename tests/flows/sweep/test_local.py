"""What jobs that run at the same time see of this machine."""

import os
import subprocess
import sys

import pytest

from flows.sweep.local import THREADS, VISIBLE, cores, gpus, shares_of


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
    script = f"import os; os.sched_setaffinity(0, [{first}]); from flows.sweep.local import cores; print(cores())"

    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "1"
    monkeypatch.setenv(THREADS, "1,4")
    assert cores() == 1
