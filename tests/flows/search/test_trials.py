"""What a search shows leads back to the runs, and the command for the best one sets what it has of the space."""

import csv
import math
import shlex
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import create_trial

from flows.experiments.rows import CurvePoints
from flows.project.compose import composed_text
from flows.search.proposals import distributions, propose, with_presets
from flows.search.search import run_search
from flows.search.search_file import Search
from flows.search.trials import STATES, EarlyStop, params_command, ranked
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


CURVES: list[CurvePoints] = [[(0.25, 5.0), (0.5, 4.0), (1.0, final)] for final in (1.0, 2.0, 3.0)]


def rule(quantile: float = 0.5, *, after: float = 0.5, lower: bool = True) -> EarlyStop:
    return EarlyStop(CURVES, after, quantile, lower=lower)


def test_a_run_is_stopped_at_the_first_point_where_its_best_value_is_worse_than_the_median() -> None:
    # At 0.75 the three are at 2.5, 3 and 3.5, half way between their points.
    stopped = rule().stopped([(0.25, 9.0), (0.5, 4.0), (0.75, 3.2), (0.9, 0.1)])

    assert stopped is not None
    assert stopped == (2, "stopped after 75% of its steps: 3.2 is worse than the median of 3 runs, 3")


@pytest.mark.parametrize(
    "points",
    [
        [(0.25, 9.0)],  # too early
        [(0.5, 4.0)],  # as good
        [(0.5, 2.9), (0.75, 3.4)],  # its best value counts
        [(0.5, 4.0), (1.0, 99.0)],  # at its end there is nothing to save
        [],
    ],
)
def test_a_run_goes_on_before_the_share_while_it_is_as_good_and_at_its_end(points: CurvePoints) -> None:
    assert rule().stopped(points) is None


def test_the_best_quarter_is_a_stricter_bound_and_higher_may_be_better() -> None:
    points = [(0.75, 2.9)]

    assert rule().stopped(points) is None
    assert rule(0.25).stopped(points) == (
        0,
        "stopped after 75% of its steps: 2.9 is worse than the best quarter of 3 runs, 2.75",
    )
    assert rule(lower=False).stopped(points) == (
        0,
        "stopped after 75% of its steps: 2.9 is worse than the median of 3 runs, 3",
    )
    assert rule(0.25, lower=False).stopped([(0.75, 3.2)]) is not None
    assert rule(lower=False).stopped([(0.75, 3.2)]) is None


def test_a_value_that_is_no_number_is_worse_than_any_other() -> None:
    stopped = rule().stopped([(0.5, 1.0), (0.75, math.nan)])

    assert stopped is not None
    assert stopped[0] == 1


def test_a_run_is_compared_only_with_curves_that_reach_its_point() -> None:
    short = EarlyStop([[(0.6, 1.0), (0.7, 1.0)]], 0.1, 0.5, lower=True)

    assert short.stopped([(0.5, 9.0), (0.8, 9.0)]) is None
    assert short.stopped([(0.65, 9.0)]) is not None


values = st.floats(0, 10) | st.just(math.nan)


@given(st.lists(values, max_size=12), st.lists(st.lists(values, min_size=1, max_size=12), max_size=5), st.booleans())
def test_reading_a_curve_early_or_late_gives_the_same_answer(
    run: list[float], earlier: list[list[float]], lower: bool
) -> None:
    curves = [[((i + 1) / len(curve), value) for i, value in enumerate(curve)] for curve in earlier]
    points = [((i + 1) / 12, value) for i, value in enumerate(run)]
    checked = EarlyStop(curves, 0.3, 0.5, lower=lower)

    answers = [checked.stopped(points[:count]) for count in range(len(points) + 1)]

    first = next((answer for answer in answers if answer), None)
    assert first == answers[-1]
    assert answers == [None if first is None or count <= first[0] else first for count in range(len(points) + 1)]
