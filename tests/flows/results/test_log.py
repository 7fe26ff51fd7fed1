"""`parrotflow log`: what is on record of the runs of a folder, however they ended."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flows.experiments.record import Run, append_run
from flows.plan.changes import Reason
from flows.plan.graph import Plan, PlannedStage
from flows.results.log import RUN_LOG, LoggedRun, cells_here, first_causes, log_table, runs_here, short_key, title_of
from flows.results.recorded import figures_in
from tests.flows.test_pipeline import COMMAND, environment, run, toy
from tests.flows.toy import commit, git, make_toy
from tests.small_project import PARROTFLOW, run_module
from tests.waiting import wait_until

WORKING = "stages:\n  work: {cmd: sh work.sh, params: [rate], outs: [out.txt]}\n"


def logged(folder: Path) -> list[dict[str, Any]]:
    done = run_module(PARROTFLOW, ["log", "--json"], folder, environment(folder.parent / "home"))
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["runs"]
    return found


def test_each_run_is_on_record_with_what_had_changed_and_how_it_ended_also_a_killed_one(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", WORKING)
    (folder / "params.yaml").write_text("rate: 1\n")
    (folder / "work.sh").write_text("echo fine > out.txt\n")
    assert run(folder).returncode == 0
    (folder / "params.yaml").write_text("rate: 2\n")
    (folder / "work.sh").write_text("echo 'error: too warm' >&2; exit 2\n")
    assert run(folder, "--note", "warmer").returncode == 1
    (folder / "work.sh").write_text("touch begun; sleep 600\n")
    with subprocess.Popen(COMMAND, cwd=folder, env=environment(tmp_path / "home"), stdout=subprocess.DEVNULL) as killed:
        try:
            wait_until((folder / "begun").exists)
            assert logged(folder)[0]["state"] == "running"
        finally:
            killed.kill()

    newest, warmer, first = logged(folder)

    assert [(one["name"], one["state"]) for one in (newest, warmer, first)] == [
        ("3", "killed"),
        ("2", "failed"),
        ("1", "finished"),
    ]
    assert first["changes"] == ["first run here"]
    assert (warmer["changes"], warmer["note"], warmer["message"]) == (["rate 1 → 2"], "warmer", "work: too warm")
    assert newest["changes"] == ["rate 1 → 2"], "since the stage ran last"
    assert (first["seconds"] > 0, newest["seconds"]) == (True, None)


def test_a_training_that_was_stopped_is_named_when_it_continues_or_what_changed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    never, after = Reason("never run", "train"), Reason("upstream", "train")
    stages = PlannedStage("train", "run", (never,), ()), PlannedStage("card", "run", (after,), ("train",))
    assert first_causes(Plan(stages)) == ["train had not finished"]

    Path("params.yaml").write_text("train: {steps: 3}\n")
    append_run(RUN_LOG, LoggedRun(name="1", began="", changes=[], commit="", params={"train": {"steps": 9}}))
    assert first_causes(Plan(stages)) == ["train.steps 9 → 3"]


def test_what_only_follows_is_no_change_and_a_missing_output_is_one_if_there_is_no_other() -> None:
    rate, gone = Reason("parameter", "train.optimizer.rate", 1, 2), Reason("output", "model", new="is missing")
    follows = PlannedStage("evaluate", "maybe", (Reason("upstream", "train"),), ("train",))

    assert first_causes(Plan((PlannedStage("train", "run", (rate, gone), ()), follows))) == [str(rate)]
    assert first_causes(Plan((PlannedStage("train", "run", (gone,), ()), follows))) == ["model is missing"]
    made = PlannedStage("publish", "run", (Reason("made", "data/card", new="modified"),), ())
    assert first_causes(Plan((made,))) == ["data/card modified"]
    assert first_causes(Plan((PlannedStage("train", "run", (rate,), ()), made))) == [str(rate)]


def test_a_title_has_the_last_part_of_a_long_key_the_first_changes_and_the_note() -> None:
    assert short_key("train.optimizer.betas [0.9] → [0.8]") == "betas [0.9] → [0.8]"
    assert short_key("train.seed 0 → 1") == "train.seed 0 → 1"
    assert short_key("stages/a.py modified") == "stages/a.py modified"
    assert title_of(["a", "b", "c", "d", "e"], "again") == 'a; b; c; 2 more; "again"'


REPORTS = {
    "reports/train.json": {"steps": 5, "tokens": 100, "epochs": 0.5, "weights_sha256": "a"},
    "reports/evaluate.json": {"bits_per_byte": 1.5, "interval_95": {"bits_per_byte": [1.4, 1.6]}},
    "reports/train_speed.json": {"tokens_per_second": 7.0, "weights_sha256": "b"},
}


def test_a_speed_is_of_these_weights_or_none() -> None:
    found = figures_in(REPORTS)

    assert (found["tokens read"], found["bits per byte"], found["interval_95"]) == (100, 1.5, [1.4, 1.6])
    assert found["tokens per second"] is None
    same = REPORTS | {"reports/train_speed.json": {"tokens_per_second": 7.0, "weights_sha256": "a"}}
    assert figures_in(same) == found | {"tokens per second": 7.0}


def test_cells_are_listed_with_what_differs_from_the_cell_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_toy(tmp_path))
    (tmp_path / "params.yaml").write_text("{}\n")
    commit(tmp_path)
    head = git(tmp_path, "rev-parse", "HEAD")
    git(tmp_path, "update-ref", "refs/exps/aa/bb/dial-seed1", head)
    for seed, reports in ((0, REPORTS), (1, {})):
        append_run(
            Path("experiments/dial/runs.jsonl"),
            Run(
                cell=f"c{seed}",
                state="finished",
                experiment=f"dial-seed{seed}",
                commit=head,
                baseline="",
                params={"train": {"seed": seed}},
                reports=reports,
                curves={},
                ended="2026-01-02T03:04:05+00:00",
            ),
        )

    first, second = cells_here()

    assert (first.name, first.figures["bits per byte"], first.changes) == ("dial-seed0", 1.5, [])
    assert (second.title, second.figures["bits per byte"]) == ('train.seed 0 → 1; "cell of dial"', None)
    table = log_table([first, second], wide=True)
    assert [*table.columns[3].cells] == ["1.500 [1.40, 1.60]", ""]
    assert [*table.columns[5].cells] == ["100 (0.50)", ""]


def test_the_last_line_of_a_run_counts_and_half_a_line_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begun = LoggedRun(name="1", began="2026-01-02T03:04:05+00:00", changes=[], commit="")
    append_run(RUN_LOG, begun)
    append_run(RUN_LOG, begun.model_copy(update={"state": "finished"}))
    with RUN_LOG.open("a") as file:
        file.write('{"name": "2"')

    assert [one.state for one in runs_here()] == ["finished"]


def test_prefect_has_a_run_by_what_changed_and_tags_it_with_its_targets_and_note() -> None:
    from flows.pipeline import run_name_and_tags
    from flows.run.one_run import PlannedRun
    from flows.run.outcome import RunOptions
    from flows.run.terminal import Terminal

    plan = Plan((PlannedStage("train", "run", (Reason("parameter", "train.optimizer.rate", 1, 2),), ()),))
    name, tags = run_name_and_tags(PlannedRun(plan, RunOptions(("train",), note="warmer"), Terminal([]), {}))

    assert name.endswith(' rate 1 → 2; "warmer"')
    assert tags == ["train", "warmer"]
