"""Trials of the fault campaign, on a pipeline of shell commands."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import yaml

from benchmarks.campaign import Line, read, run_trials, summary
from benchmarks.runs import faults
from benchmarks.runs.broken_server import BrokenServer
from benchmarks.runs.faults import KINDS, Kind, kill_all
from benchmarks.runs.small_pipeline import EVALUATION, ROOT, WORKS, Edit, Projects, Work, small_params
from benchmarks.runs.trial import Attempt, FailedTrialError, Trial
from flows.plan.settings import section_models
from tests.flows.toy import make_toy

DVC_YAML = """\
stages:
  first: {cmd: sleep 1 && cp source.txt first.txt, deps: [source.txt], outs: [first.txt]}
  join: {cmd: cat first.txt first.txt > join.txt, deps: [first.txt], outs: [join.txt]}
"""


def make(folder: Path) -> None:
    make_toy(folder, DVC_YAML)
    (folder / "params.yaml").write_text("{}\n")


def lie(trial: Trial) -> None:
    """A fault that leaves a wrong result behind a run that succeeded."""
    trial.attempt(lambda process: None)
    (trial.folder / "join.txt").write_text("wrong")


def test_the_small_project_has_the_parameters_and_the_stages_of_today() -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]

    assert {*EVALUATION, *(work.target for work in WORKS.values())} <= stages.keys()
    for name, values in small_params().items():
        section_models(ROOT)[name].model_validate_json(json.dumps(values))


def test_trials_end_as_equal_or_say_what_was_wrong_and_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WORKS, "toy", Work("toy", "new", "join"))
    kinds = [Kind("kill-all", "", kill_all, ["toy"]), Kind("lie", "", lie, ["toy"])]
    monkeypatch.setattr("benchmarks.campaign.KINDS", kinds)
    log = tmp_path / "trials.jsonl"

    first = run_trials([0, 1], tmp_path, log, 2, float("inf"), Projects(tmp_path / "projects", make))

    assert [(line.kind, line.outcome) for line in first] == [("kill-all", "equal"), ("lie", "wrong")]
    assert "wrong results: join.txt" in first[1].message
    assert sorted(read(log), key=lambda line: line.number) == first


@pytest.mark.parametrize(
    ("code", "said", "clear"),
    [
        (0, "", True),
        (1, "error: params.yaml: train.seed: expected a number", True),
        (-9, "", True),
        (1, "", False),
        (1, "error: x\nTraceback (most recent call last):\n", False),
    ],
)
def test_a_refusal_is_clear_if_it_has_a_message_and_no_traceback(code: int, said: str, clear: bool) -> None:
    if clear:
        Attempt(code, said).require_clear("it")
    else:
        with pytest.raises(FailedTrialError):
            Attempt(code, said).require_clear("it")


def test_edits_fit_the_files_of_this_checkout() -> None:
    edits = [*faults.DATA_EDITS, *faults.TRAIN_EDITS]
    code = [edit for edit in edits if edit.path.startswith("stages/")]

    assert len(code) >= 3
    assert [edit.path for edit in code if str(edit.old) not in Path(edit.path).read_text()] == []


@pytest.mark.parametrize("in_place", [True, False])
def test_an_edit_can_be_taken_back(tmp_path: Path, in_place: bool) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one two\n")

    before = Edit("a.txt", "two", "three").apply(tmp_path, in_place=in_place)
    assert file.read_text() == "one three\n"
    faults.put(file, before, in_place=in_place)

    assert file.read_text() == "one two\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_row_for_each_kind_counts_its_trials() -> None:
    def line(number: int, outcome: str, lost: float) -> Line:
        return Line(number, KINDS[number % len(KINDS)].name, "everything", outcome, 1, lost, 2, [], "", "c0ffee")

    rows = summary([line(0, "equal", 1.0), line(len(KINDS), "wrong", 5.0), line(1, "missed", 9.0)])

    of_first = {row.figure.rpartition(": ")[2]: row.ours for row in rows if row.figure.startswith(KINDS[0].what)}
    assert len(rows) == 2 * len(of_first)
    assert (rows[0].runs, rows[0].unit) == (2, "of 2")
    assert of_first == {
        "equal results": 1, "wrong": 1, "unclear": 0, "refused at first": 2, "lost, median": 3.0,
        "stages again, mean": 2,
    }  # fmt: skip
    assert rows[0].versions["commit"] == "c0ffee"


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("503", lambda got: got == 503),
        ("cut", lambda got: got == "IncompleteRead"),
        ("flip", lambda got: len(got) == 100 and got != bytes(100)),
    ],
)
def test_a_broken_server_breaks_in_the_way_it_is_told(
    tmp_path: Path, fault: str, found: Callable[[object], bool]
) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    with BrokenServer(tmp_path, [fault], 1.0, Random(0)) as server:
        assert found(fetched(f"{server.address}/file"))
        server.share = 0.0
        assert fetched(f"{server.address}/file") == bytes(100)


def fetched(address: str) -> object:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        return error.code
    except Exception as error:
        return type(error).__name__
