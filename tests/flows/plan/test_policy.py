"""Timeouts, retries, resources, gates: what `meta.flow` of a stage in dvc.yaml says, on real runs."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flows.plan.policy import Check, Policy, read_policy
from flows.run.gate import judge, table
from flows.run.slots import Slots, slots_of_this_machine
from stages.runtime.entry import UserError
from tests.flows.test_pipeline import run, toy

FLAKY = """\
stages:
  fetch:
    cmd: sh fetch.sh
    outs: [data.txt]
    meta: {flow: {retries: 2, retry_delay_seconds: 0}}
"""

SLOW = """\
stages:
  slow:
    cmd: sleep 60 && touch slow.txt
    outs: [slow.txt]
    meta: {flow: {timeout_seconds: 1}}
"""

GATED = """\
stages:
  measure:
    cmd: cp value.json metrics.json
    deps: [value.json]
    metrics: [metrics.json]
  publish:
    cmd: cp metrics.json receipt.json
    deps: [metrics.json]
    outs: [receipt.json]
    meta:
      flow:
        gate:
          - {metric: "metrics.json:loss", at_most: 2.0, not_above: "receipt.json:loss", tolerance: 0.1}
  tell:
    cmd: cp receipt.json told.json
    deps: [receipt.json]
    outs: [told.json]
"""


def test_a_failure_that_may_pass_is_tried_again(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", FLAKY)
    (folder / "fetch.sh").write_text("echo try >> tries\n[ $(wc -l < tries) -ge 3 ] || exit 69\necho 1 > data.txt\n")

    result = run(folder)

    assert result.returncode == 0, result.stdout + result.stderr
    assert (folder / "tries").read_text() == "try\n" * 3


def test_a_mistake_is_not_tried_again(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", FLAKY)
    (folder / "fetch.sh").write_text("echo try >> tries\nexit 2\n")

    assert run(folder).returncode == 1
    assert (folder / "tries").read_text() == "try\n"


def test_retries_end(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", FLAKY)
    (folder / "fetch.sh").write_text("echo try >> tries\necho 'error: no answer' >&2\nexit 69\n")

    result = run(folder)

    assert result.returncode == 1
    assert (folder / "tries").read_text() == "try\n" * 3
    assert result.stdout.count("error: no answer") == 4  # three tries, and the summary


def test_a_stage_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", SLOW)
    began = time.monotonic()

    result = run(folder)

    assert result.returncode == 1
    assert time.monotonic() - began < 45
    assert "took longer than timeout_seconds = 1 (meta.flow in dvc.yaml) and was ended" in result.stdout
    assert not (folder / "slow.txt").exists()


def test_a_stage_that_was_killed_says_so(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: kill -9 $$, outs: [one.txt]}\n")

    result = run(folder)

    assert result.returncode == 1
    assert "was killed (SIGKILL) from outside; the same command goes on" in result.stdout


def test_a_gate_that_refuses_is_seen_and_no_failure(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", GATED)
    (folder / "value.json").write_text('{"loss": 2.5}')

    result = run(folder)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "| loss | 2.5 | at most 2 | NO |" in result.stdout
    assert not (folder / "receipt.json").exists()
    assert not (folder / "told.json").exists()

    (folder / "value.json").write_text('{"loss": 1.5}')
    assert run(folder).returncode == 0
    assert json.loads((folder / "told.json").read_text()) == {"loss": 1.5}

    (folder / "value.json").write_text('{"loss": 1.7}')
    worse = run(folder)
    assert worse.returncode == 0
    assert "| loss | 1.7 | not above 1.5, as receipt.json:loss (tolerance 0.1) | NO |" in worse.stdout
    assert json.loads((folder / "receipt.json").read_text()) == {"loss": 1.5}


def test_the_second_run_in_a_folder_is_refused_with_the_firsts_name(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  slow: {cmd: sleep 60 && touch slow.txt, outs: [slow.txt]}\n")
    first = subprocess.Popen([sys.executable, "-m", "flows.pipeline"], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    for line in first.stdout:
        if "started" in line:
            break

    second = run(folder)
    first.terminate()
    first.wait()

    assert second.returncode == 2
    assert f"(process {first.pid}, since 20" in second.stderr
    assert "works in this folder; wait for it (--wait), or end it" in second.stderr


def test_a_lock_of_a_process_that_is_gone_holds_nobody_up(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: echo 1 > one.txt, outs: [one.txt]}\n")
    (folder / ".parrotflow").mkdir()
    (folder / ".parrotflow" / "run.lock").write_text('{"name": "gone", "pid": 1, "since": "2020"}')

    assert run(folder).returncode == 0


def test_a_policy_with_an_unknown_key_is_refused_by_stage_and_key() -> None:
    with pytest.raises(UserError, match=r"dvc.yaml: train.meta.flow.timeout: Extra inputs are not permitted"):
        read_policy("train", {"flow": {"timeout": 3}})
    assert read_policy("train", {"owner": "me"}) == Policy()


def test_a_gate_on_what_is_not_there_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"gate on `m\.json:loss`: no such file"):
        judge([Check(metric="m.json:loss", at_most=1)])
    Path("m.json").write_text('{"loss": {"a": "x"}}')
    with pytest.raises(UserError, match="no number stands there"):
        judge([Check(metric="m.json:loss.a", at_most=1)])
    Path("m.json").write_text('{"loss": {"a": 2}}')
    verdicts = judge([Check(metric="m.json:loss.a", at_least=1, at_most=1, not_below="absent.json:x")])
    assert [verdict.holds for verdict in verdicts] == [False, True]
    assert table(verdicts).count("\n") == 3


def test_stages_that_share_a_resource_run_one_after_the_other_and_hold_up_no_others() -> None:
    slots = Slots(stages_at_once=2, capacity={"memory": 2})
    held, waited = threading.Event(), threading.Event()

    def second() -> None:
        with slots.taken(["gpu"], lambda: False):
            waited.set()

    with slots.taken(["gpu"], held.is_set) as got:
        assert got
        thread = threading.Thread(target=second)
        thread.start()
        with slots.taken(["memory"], held.is_set) as also:
            assert also
            assert not waited.is_set()
    thread.join(5)
    assert waited.is_set()


def test_who_gives_up_gets_no_slot() -> None:
    slots = Slots(stages_at_once=1)
    with slots.taken([], lambda: False), slots.taken([], lambda: True) as got:
        assert not got


@pytest.mark.parametrize(
    ("name", "value"),
    [("PARROTFLOW_STAGES_AT_ONCE", "0"), ("PARROTFLOW_RESOURCES", "gpu=x"), ("PARROTFLOW_RESOURCES", "gpu")],
)
def test_settings_that_are_no_numbers_are_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"{name}: `{value}`: expected a whole number from 1 on"):
        slots_of_this_machine()


def test_capacities_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PARROTFLOW_RESOURCES", "gpu=2,memory=1")
    assert slots_of_this_machine().capacity == {"gpu": 2, "memory": 1}
