"""What a search shows leads back to the runs, and the command for the best one sets what it has of the space."""

import csv
import shlex
import shutil
from pathlib import Path

import pytest
from optuna.trial import create_trial

from flows.project.compose import composed_text
from flows.search.proposals import distributions, propose, with_presets
from flows.search.search import run_search
from flows.search.search_file import Search
from flows.search.trials import STATES, params_command, ranked
from stages.runtime.section import read_params_file
from tests.flows.search.small_search import SEARCH, InProcess, write_search
from tests.small_project import ROOT


def test_the_table_has_the_best_runs_with_their_experiments(tmp_path: Path) -> None:
    folder = write_search(tmp_path, budget={"runs": 24})
    found = run_search("toy", InProcess())
    best = ranked(found.prepared.search, found.trials)

    text = (folder / "best.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ")]

    assert lines[0] == "| run | loss (lower is better) | model.rate | model.width | shape | experiment |"
    assert [int(line.split("|")[1]) for line in lines[2:]] == [trial.number + 1 for trial in best[:10]]
    assert f"dvc exp apply {best[0].user_attrs['experiment']}" in text
    assert text.startswith("Which rate is best?\n\n24 runs: ")
    rows = list(csv.DictReader((folder / "runs.csv").open()))
    assert [row["cell"] for row in rows] == [trial.user_attrs["cell"] for trial in found.trials]
    assert [row["state"] for row in rows] == [STATES[trial.state] for trial in found.trials]
    assert "commits" not in text
    assert [float(row["loss"]) for row in rows if row["loss"]] == [t.value for t in found.trials if t.value is not None]


def test_runs_of_several_commits_are_named(tmp_path: Path) -> None:
    folder = write_search(tmp_path)
    run_search("toy", InProcess())
    record = folder / "runs.jsonl"
    record.write_text(record.read_text().replace('"baseline":"start"', '"baseline":"other"', 2))

    assert "\nThe runs were started from 2 commits: other, start.\n" in run_search("toy", None).text()


def test_the_command_writes_what_the_best_run_has_of_the_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    shutil.copy(ROOT / "params.yaml", tmp_path / "params.yaml")
    params = read_params_file()
    space = {
        "model": {"choices": ["llama_mini"]},
        "train.model.hidden_size": {"choices": [64]},
        "schedule": {"choices": {"short": {"train.max_steps": 70, "train.schedule.final_share": 0.1}}},
        "train.optimizer.muon_learning_rate": {"low": 1e-6, "high": 1e-5, "log": True},
    }
    search = Search.model_validate(SEARCH | {"stop_early": None, "at_once": 1, "base": {}, "space": space})
    (proposal, *_) = propose("toy", with_presets(search), [])
    trial = create_trial(value=0.0, params=dict(proposal.values), distributions=distributions(search))

    command = shlex.split(params_command(search, trial))

    assert command[:2] == ["parrotflow", "params"]
    Path("composed.yaml").write_text(composed_text(command[2:]))
    assert read_params_file(Path("composed.yaml")) == proposal.cell.params(params)
