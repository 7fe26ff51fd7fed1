"""`--json`: the last line of standard output is one object, of the same shape for every command that has it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flows.sweep.toy_sweep import TWO_CELLS, make_sweep
from tests.flows.test_pipeline import environment, toy
from tests.small_project import PARROTFLOW, run_module

MEASURED = """\
stages:
  train:
    cmd: echo '{"loss":2.5,"interval_95":{"loss":[2.4,2.6]}}' > scores.json
    outs: [scores.json]
    meta: {flow: {show: {metrics: {loss: "scores.json:loss"}}}}
  after:
    cmd: sh after.sh
    deps: [scores.json, after.sh]
    outs: [after.txt]
"""


def answer(folder: Path, *words: str) -> dict[str, Any]:
    """The object, after a check of what all of them have."""
    (folder.parent / "home").mkdir(exist_ok=True)
    done = run_module(PARROTFLOW, [*words, "--json"], folder, environment(folder.parent / "home"))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["exit_code"] == done.returncode
    assert found["ok"] == (done.returncode == 0)
    assert found["seconds"] >= 0
    assert bool(found["error"]) == (not found["ok"] and "findings" not in found)
    assert "\x1b" not in done.stdout
    return found


def test_a_run_says_what_ran_and_why_and_the_metrics_with_their_intervals(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", MEASURED)
    (folder / "after.sh").write_text("echo 'error: a text that is missing' >&2\nexit 2\n")

    failed = answer(folder, "run")

    assert failed["exit_code"] == 1
    assert "a text that is missing" in failed["error"]
    assert [(one["stage"], one["result"]) for one in failed["stages"]] == [("train", "ran"), ("after", "failed")]
    assert all(one["why"] for one in failed["stages"])
    (folder / "after.sh").write_text("touch after.txt\n")
    done = answer(folder, "run")
    assert [(one["stage"], one["result"]) for one in done["stages"]] == [("train", "up to date"), ("after", "ran")]
    assert done["metrics"] == failed["metrics"] == {"loss": {"value": 2.5, "interval_95": [2.4, 2.6]}}
    assert (folder / done["record"]).is_file()
    assert answer(folder, "run")["metrics"] == done["metrics"], "also if nothing is to do"
    planned = answer(folder, "why")
    assert {one["name"]: one["state"] for one in planned["stages"]} == dict.fromkeys(("train", "after"), "up to date")
    assert [one["state"] for one in answer(folder, "log")["runs"]] == ["finished", "failed"]


def test_a_sweep_and_its_table_give_the_numbers_and_the_claims(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path / "toy", **TWO_CELLS)

    dry = answer(folder, "sweep", "toy", "--dry")
    assert dry["to_run"] == 2
    assert all(one["why"] for one in dry["cells"])
    assert (folder / "experiments/toy/runs.jsonl").exists() is False

    done = answer(folder, "sweep", "toy")
    assert done["cells"] == {"finished": 2}
    assert [claim["answer"] for claim in done["claims"]] == ["holds"]
    assert (folder / done["record"]).is_file()
    (first, second) = done["metrics"]["main"]
    assert (first["levels"], second["levels"]) == ({"recipe": "a"}, {"recipe": "b"})
    assert {"n", "mean", "low", "high"} <= first["loss"].keys(), "by the metric's name in the file"
    table = answer(folder, "table", "toy")
    assert table["metrics"] == done["metrics"]
    assert answer(folder, "sweep", "toy", "--dry")["to_run"] == 0


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        ("run nowhere", "nowhere", 2),
        ("table nothing", "nothing", 2),
        ("sweep nothing --dry", "nothing", 2),
        ("why nowhere", "nowhere", 2),
        ("compare 7", "7", 2),
        ("published list", "publish", 2),
        ("run --colour", "--colour", 2),
    ],
)
def test_a_refused_command_says_so_in_the_object(tmp_path: Path, words: str, said: str, code: int) -> None:
    folder = toy(tmp_path / "toy", MEASURED)

    refused = answer(folder, *words.split())

    assert (refused["ok"], refused["exit_code"]) == (False, code)
    assert said in refused["error"]


def test_a_doctor_lists_its_findings(tmp_path: Path) -> None:
    findings = answer(toy(tmp_path / "toy", MEASURED), "doctor")["findings"]

    assert {"level", "what", "found", "remedy"} == findings[0].keys()
    assert {"packages", "git", "disk"} <= {one["what"] for one in findings}
