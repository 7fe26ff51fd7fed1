import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flows.run.locks import (
    RESOURCES_VARIABLE,
    STAGES_AT_ONCE_VARIABLE,
    THREADS,
    VISIBLE,
    Devices,
    cores,
    gpus,
    run_lock,
    shares_of,
)

HOLDER = """
import sys
from flows.run.locks import run_lock
with run_lock("nightly"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_run_that_waits_says_for_whom(tmp_path: Path) -> None:
    said: list[str] = []

    def second() -> None:
        with run_lock("on-demand", wait=True, folder=tmp_path, say=said.append):
            said.append("entered")

    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        waiting = threading.Thread(target=second)
        waiting.start()
        while not said:
            time.sleep(0.05)
        holder.stdin.close()
    waiting.join()

    assert said[0].startswith(f"the run nightly (process {holder.pid}, since ")
    assert said[0].endswith("is using this folder; waiting for its end ...")
    assert said[1:] == ["entered"]


def test_a_machine_for_one_training_at_a_time_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RESOURCES_VARIABLE, raising=False)

    assert shares_of(["0", "1"], 8) == [{}]


@pytest.mark.parametrize(
    ("at_once", "devices", "shares"),
    [
        (2, ["0", "1"], [{VISIBLE: "0"}, {VISIBLE: "1"}]),
        (2, ["2", "5", "6", "7"], [{VISIBLE: "2,5"}, {VISIBLE: "6,7"}]),
        (3, ["0"], [{VISIBLE: "0"}] * 3),
        (2, [], [{THREADS: "4"}] * 2),
    ],
)
def test_what_runs_at_once_divides_the_gpus_or_the_cores(
    monkeypatch: pytest.MonkeyPatch, at_once: int, devices: list[str], shares: list[dict[str, str]]
) -> None:
    monkeypatch.setenv(RESOURCES_VARIABLE, f"accelerator={at_once}")
    monkeypatch.setenv(STAGES_AT_ONCE_VARIABLE, "4")

    assert shares_of(devices, 8) == shares


def test_no_share_is_kept_for_stages_that_do_not_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RESOURCES_VARIABLE, "accelerator=8")
    monkeypatch.setenv(STAGES_AT_ONCE_VARIABLE, "2")

    assert shares_of([*"01234567"], 8) == [{VISIBLE: "0,1,2,3"}, {VISIBLE: "4,5,6,7"}]
    assert shares_of([], 8) == [{THREADS: "4"}] * 2
    monkeypatch.setenv(STAGES_AT_ONCE_VARIABLE, "1")
    assert shares_of([*"01234567"], 8) == [{}]


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("3,GPU-1a", ["3", "GPU-1a"]),
        (" 3, MIG-GPU-1a/1/0 ", ["3", "MIG-GPU-1a/1/0"]),
        ("", []),
        (" ", []),
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
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert cores() == len(before)


@pytest.mark.parametrize(("threads", "usable"), [("1", 1), ("1,4", 1), ("99999", None), ("", None), ("many", None)])
def test_a_users_own_number_of_threads_is_divided_and_never_raised(
    monkeypatch: pytest.MonkeyPatch, threads: str, usable: int | None
) -> None:
    monkeypatch.delenv(THREADS, raising=False)
    of_this_process = cores()
    monkeypatch.setenv(THREADS, threads)

    assert cores() == (usable or of_this_process)


def test_no_two_stages_have_the_same_share_at_once() -> None:
    devices = Devices([{VISIBLE: "0"}, {VISIBLE: "1"}])

    with devices.taken(["accelerator"]) as one, devices.taken(["accelerator"]) as two, devices.taken(["disk"]) as none:
        assert (one, two, none) == ({VISIBLE: "0"}, {VISIBLE: "1"}, {})
    with devices.taken(["accelerator"]) as again:
        assert again in ({VISIBLE: "0"}, {VISIBLE: "1"})
