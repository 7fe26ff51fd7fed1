"""Proposals stay within the space, are never repeated, and end up in a study that optuna's own tools read."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import FrozenTrial, TrialState

from flows.search.proposals import judged, propose, rounded
from flows.search.search import run_search
from flows.search.search_file import Dimension, Search
from flows.search.trials import importances
from tests.flows.search.small_search import PARAMS, SEARCH, InProcess, write_search


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 9), st.integers(1, 6), st.sampled_from(["random", "tpe"]))
def test_the_proposals_of_a_batch_are_distinct_within_their_bounds_and_follow_from_the_seed(
    seed: int, at_once: int, sampler: str
) -> None:
    search = Search.model_validate(SEARCH | {"seed": seed, "at_once": at_once, "sampler": sampler})

    batch = propose("toy", search, [])

    assert [int(item.cell.name.split("-")[1]) for item in batch] == list(range(1, at_once + 1))
    assert len({item.cell.id for item in batch}) == at_once
    for item in batch:
        rate, width = item.values["model.rate"], item.values["model.width"]
        assert isinstance(rate, float)
        assert 0.001 <= rate <= 1
        assert rate == float(f"{rate:.3g}")
        assert width in range(8, 65, 8)
        assert item.values["shape"] in ("flat", "deep")
    assert propose("toy", search, []) == batch
    fewer = (
        Search.model_validate(SEARCH | {"seed": seed, "at_once": at_once - 1, "sampler": sampler})
        if at_once > 1
        else None
    )
    assert fewer is None or propose("toy", fewer, []) == batch[:-1]


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.floats(0, 1))
def test_a_rounded_value_stays_within_its_bounds(low: float, other: float, share: float) -> None:
    low, high = sorted((low, other))
    if low < high:
        value = min(max(low + share * (high - low), low), high)
        written = rounded(Dimension(low=low, high=high), value)
        assert isinstance(written, float)
        assert low <= written <= high
        assert written == pytest.approx(value, rel=0.005)
    assert rounded(Dimension(low=0.0, high=1.0, step=0.1), 0.30000000000000004) == 0.3


def test_different_seeds_propose_different_runs() -> None:
    rates = {propose("toy", Search.model_validate(SEARCH | {"seed": seed}), [])[0].cell.id for seed in range(20)}

    assert len(rates) == 20


def test_optunas_own_tools_read_the_journal(tmp_path: Path) -> None:
    folder = write_search(tmp_path, budget={"runs": 24})
    fails = InProcess(fails=lambda cell: "no luck" if cell.overrides["model.width"] == 8 else "")
    found = run_search("toy", fails)
    journal = str(folder / "optuna.log")

    backend = optuna.storages.journal.JournalFileBackend(journal)
    study = optuna.load_study(study_name="toy", storage=optuna.storages.JournalStorage(backend))
    command = [Path(sys.executable).with_name("optuna"), "best-trial", "--study-name", "toy", "--storage", journal]
    printed = subprocess.run(
        [*command, "--storage-class", "JournalFileBackend", "--format", "json"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL}
    for theirs, ours in zip(study.trials, found.trials, strict=True):
        assert (theirs.number, theirs.state, theirs.value) == (ours.number, ours.state, ours.value)
        assert (theirs.params, theirs.user_attrs) == (ours.params, ours.user_attrs)
        curve = found.runs[theirs.user_attrs["cell"]].curves["curve.tsv:loss"]
        assert [*theirs.intermediate_values.items()] == curve[: len(theirs.intermediate_values)]
    assert json.loads(printed)["params"] == study.best_trial.params


def test_the_importance_names_the_key_that_matters_and_needs_enough_runs(tmp_path: Path) -> None:
    space = {"model.rate": SEARCH["space"]["model.rate"], "model.seed": {"low": 0, "high": 1000, "integer": True}}
    write_search(tmp_path, budget={"runs": 30}, space=space, base={}, sampler="random", stop_early=None)
    found = run_search("toy", InProcess())

    shares = importances(found.prepared.search, found.trials)

    assert list(shares) == ["model.rate", "model.seed"]
    assert shares["model.rate"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)
    assert importances(found.prepared.search, found.trials[:19]) == {}


def best_of(search: Search) -> float:
    """The best value of 36 runs, proposed and judged without any files."""
    trials: list[FrozenTrial] = []
    while len(trials) < 36:
        trials += [
            judged(search, trials, number, item, InProcess().run(item.cell, PARAMS), PARAMS)
            for number, item in enumerate(propose("toy", search, trials), len(trials))
        ]
    return min(trial.value for trial in trials if trial.value is not None)


def test_tpe_comes_nearer_to_the_optimum_than_random_proposals() -> None:
    def median(sampler: str) -> float:
        files = (SEARCH | {"sampler": sampler, "seed": seed, "stop_early": None} for seed in range(5))
        return statistics.median(best_of(Search.model_validate(file)) for file in files)

    assert median("tpe") < 1.15 < median("random")  # the optimum is 1
