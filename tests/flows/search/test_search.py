"""A search is the same however often it is killed, and spends no more than its budget."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from optuna.trial import FrozenTrial

from flows.experiments.cells import Cell
from flows.experiments.runs import recorded_runs
from flows.search import search as searching
from flows.search.proposals import cell_of_trial
from flows.search.search import Found, run_search
from flows.search.trials import STATES, ranked
from stages.runtime.entry import EXIT_CONTINUE, UserError
from tests.flows.operated import wait_until
from tests.flows.search.small_search import PARAMS, InProcess, Killed, write_search


def course(found: Found) -> list[tuple[Any, ...]]:
    """Everything about the trials that must not depend on how the search was run."""
    return [
        (
            name_of(trial),
            STATES[trial.state],
            trial.value,
            trial.params,
            trial.intermediate_values,
            trial.user_attrs["message"],
            trial.user_attrs["after"],
        )
        for trial in found.trials
    ]


def name_of(trial: FrozenTrial) -> str:
    """That of its DVC experiment, if it has one."""
    return f"toy-{trial.number + 1:04}-{trial.user_attrs['cell']}"


def start_anew(folder: Path) -> None:
    """Remove what a search has recorded."""
    for name in ("runs.jsonl", "optuna.log"):
        (folder / name).unlink()


def results(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("best.md", "runs.csv")}


def test_the_best_run_comes_close_to_the_optimum_and_bad_runs_are_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_search(tmp_path, budget={"runs": 36})

    found = run_search("toy", InProcess())

    states = [STATES[trial.state] for trial in found.trials]
    assert len(states) == 36
    assert states[:6] == ["finished"] * 6  # two batches: at the start of each fewer than five runs had finished
    assert 5 <= states.count("stopped") <= 25
    assert all(len(trial.intermediate_values) < 10 for trial in found.trials if STATES[trial.state] == "stopped")
    best = ranked(found.prepared.search, found.trials)[0]
    assert best.value is not None
    assert best.value < 1.35  # the lowest of the first, random ones is above 1.5
    assert best.value < min(trial.value for trial in found.trials[:5] if trial.value)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 36
    assert any(
        line.startswith(f"run {best.number + 1} finished {best.value:.6g} (best so far): rate ") for line in lines
    )
    assert found.ended == "36 runs are spent"
    assert {path.name for path in folder.iterdir()} == {
        "runs.jsonl",
        "runs.csv",
        "best.md",
        "optuna.log",
        "spent.json",
    }


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_search_that_is_killed_after_any_run_ends_with_the_same_files(tmp_path: Path, sampler: str) -> None:
    folder = write_search(tmp_path, sampler=sampler)
    whole = InProcess()
    expected, files = course(run_search("toy", whole)), results(folder)

    start_anew(folder)
    ran: list[str] = []
    while len(ran) < 12:
        part = InProcess(killed_after=1 + len(ran) % 4)
        try:
            run_search("toy", part)
        except Killed:
            assert len(part.ran) == part.killed_after
        ran += part.ran

    assert ran == whole.ran
    assert course(run_search("toy", InProcess(killed_after=0))) == expected
    assert results(folder) == files


def test_a_kill_between_the_record_and_optunas_journal_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_search(tmp_path)
    run_search("toy", InProcess())
    files = results(folder)
    start_anew(folder)

    def dies(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(searching, "judged", dies)
        with pytest.raises(Killed):
            run_search("toy", InProcess())
    assert len(recorded_runs(folder / "runs.jsonl")) == 3
    continued = InProcess()
    run_search("toy", continued)

    assert len(continued.ran) == 9
    assert results(folder) == files


@pytest.mark.parametrize("budget", [{"runs": 24}, {"compute": {"source": "scores.json:flop", "tflop": 16}}])
def test_the_early_stop_does_not_depend_on_when_the_curves_are_read(tmp_path: Path, budget: dict[str, Any]) -> None:
    """Nor does what is spent: a run that was read too late, and ended, counts as little as one that was stopped."""
    folder = write_search(tmp_path, budget=budget)
    read = course(run_search("toy", InProcess()))
    start_anew(folder)

    unread = course(run_search("toy", InProcess(reads_curves=False)))

    assert unread == read
    assert "stopped" in {state for _, state, *_ in read}


def test_a_larger_budget_continues_with_what_it_would_have_proposed_from_the_start(tmp_path: Path) -> None:
    folder = write_search(tmp_path, budget={"runs": 13})
    whole = course(run_search("toy", InProcess()))
    start_anew(folder)

    parts = []
    for runs in (4, 5, 13):  # the second ends in the middle of a batch of three
        write_search(tmp_path, budget={"runs": runs})
        part = InProcess()
        parts.append(course(run_search("toy", part)))

    assert [len(part) for part in parts] == [4, 5, 13]
    assert parts[-1] == whole
    assert len(part.ran) == 8


def test_a_failed_run_is_counted_and_shown_and_not_repeated(tmp_path: Path) -> None:
    folder = write_search(tmp_path)
    fails = InProcess(fails=lambda cell: "no luck" if cell.overrides["model.depth"] == 1 else "")

    found = run_search("toy", fails)

    failed = [trial for trial in found.trials if STATES[trial.state] == "failed"]
    assert failed
    assert {trial.user_attrs["message"] for trial in failed} == {"no luck"}
    assert len(found.trials) == len(fails.ran) == 12
    for trial in failed:
        assert f"Run {trial.number + 1} ({name_of(trial)}) failed: no luck" in (folder / "best.md").read_text()
    assert course(run_search("toy", InProcess(killed_after=0))) == course(found)


def test_a_search_whose_first_runs_all_fail_ends_and_the_same_command_tries_them_again(tmp_path: Path) -> None:
    write_search(tmp_path)
    fails = InProcess(fails=lambda cell: "no such file")

    with pytest.raises(UserError) as error:
        run_search("toy", fails)

    assert len(fails.ran) == 3
    assert str(error.value).count("no such file") == 3
    assert run_search("toy", None).text().startswith("3 runs: 3 failed.")
    again = InProcess()
    assert len(run_search("toy", again).trials) == 12
    assert again.ran[:3] == fails.ran


def test_a_run_that_was_killed_is_named_and_the_same_command_continues_with_it(tmp_path: Path) -> None:
    folder = write_search(tmp_path)
    expected, files = course(run_search("toy", InProcess())), results(folder)
    names = [name for name, *_ in expected]
    start_anew(folder)

    with pytest.raises(UserError) as error:
        run_search("toy", InProcess(dies=lambda cell: "train: the memory ran out" if cell.name == names[4] else ""))

    assert f"searches/toy.yaml: {names[4]} (rate " in str(error.value)
    assert "has no result yet: train: the memory ran out" in str(error.value)
    assert "the same command continues with it" in str(error.value)
    assert error.value.exit_code == EXIT_CONTINUE
    again = InProcess()
    assert course(run_search("toy", again)) == expected
    assert again.ran == [names[4], *names[6:]]
    assert results(folder) == files


def test_a_run_without_the_number_has_failed(tmp_path: Path) -> None:
    write_search(tmp_path, objective={"source": "scores.json:accuracy", "better": "higher"})

    with pytest.raises(UserError, match=r"failed: its report has no number scores\.json:accuracy"):
        run_search("toy", InProcess())


def test_no_batch_begins_when_the_compute_is_spent(tmp_path: Path) -> None:
    write_search(tmp_path, budget={"compute": {"source": "scores.json:flop", "tflop": 3.5}}, stop_early=None)

    found = run_search("toy", InProcess())

    assert len(found.trials) == 6  # after the first three 3 TFLOP were spent
    assert found.ended == "3.5 TFLOP are spent"


def test_the_time_of_a_call_that_is_killed_counts_up_to_its_last_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_search(tmp_path, budget={"hours": 0.5})
    monkeypatch.setattr(searching, "CLOCK_WRITTEN_EVERY_SECONDS", 0.01)
    seen: list[float] = []

    def look(cell: Cell) -> str:
        wait_until((folder / "spent.json").is_file, 30)
        seen.append(json.loads((folder / "spent.json").read_text())["seconds"])
        return ""

    with pytest.raises(Killed):
        run_search("toy", InProcess(fails=look, killed_after=2))

    assert len(seen) == 2, "it is there while the runs go on"


def test_the_time_of_all_calls_counts_and_what_is_recorded_is_shown_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_search(tmp_path, budget={"hours": 0.5})
    now = iter(range(0, 1_000_000, 1000))  # each batch takes 1000 s
    monkeypatch.setattr(searching.time, "monotonic", lambda: float(next(now)))

    with pytest.raises(Killed):
        run_search("toy", InProcess(killed_after=1))
    found = run_search("toy", InProcess())

    assert found.ended == "0.5 hours are spent"
    assert len(found.trials) == 3
    assert course(run_search("toy", InProcess(killed_after=0))) == course(found)
    assert "2000.0" in (folder / "spent.json").read_text()


def test_a_space_that_is_exhausted_ends_the_search(tmp_path: Path) -> None:
    space = {"model.width": {"choices": [8, 16]}, "model.name": {"choices": ["a", "b", "c"]}}
    write_search(tmp_path, space=space, budget={"runs": 50}, at_once=4)

    found = run_search("toy", InProcess())

    assert len(found.trials) == 6
    assert len({trial.user_attrs["cell"] for trial in found.trials}) == 6
    assert found.ended == "every run of the space was made"


def test_showing_a_search_runs_nothing_and_writes_nothing(tmp_path: Path) -> None:
    folder = write_search(tmp_path)
    assert run_search("toy", None).text().startswith("0 runs: none yet.")
    with pytest.raises(Killed):
        run_search("toy", InProcess(killed_after=5))
    before = {path: path.read_bytes() for path in folder.iterdir()}

    shown = run_search("toy", None)

    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert [trial.number for trial in shown.trials] == [0, 1, 2, 3, 4]
    assert shown.ended == "the rest is not run yet"


def test_runs_that_were_made_with_another_params_yaml_are_refused(tmp_path: Path) -> None:
    folder = write_search(tmp_path)
    run_search("toy", InProcess())
    record = (folder / "runs.jsonl").read_bytes()

    (tmp_path / "params.yaml").write_text(yaml.safe_dump(PARAMS | {"other": {"rate": 9}}))
    assert len(run_search("toy", InProcess(killed_after=0)).trials) == 12  # `train` does not read it
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(PARAMS | {"model": PARAMS["model"] | {"steps": 9}}))
    with pytest.raises(UserError, match=r"toy/runs\.jsonl: toy-0001-\w+ was made with another params\.yaml: model\.st"):
        run_search("toy", InProcess())

    assert (folder / "runs.jsonl").read_bytes() == record


def test_a_study_of_another_search_file_is_refused_with_what_differs_and_only_the_budget_may_change(
    tmp_path: Path,
) -> None:
    folder = write_search(tmp_path)
    run_search("toy", InProcess())
    before = (folder / "optuna.log").read_bytes()
    write_search(tmp_path, seed=1)

    for runs in (InProcess(), None):
        with pytest.raises(UserError, match=r"toy/optuna\.log: made with another search file: seed; put these values"):
            run_search("toy", runs)
    assert (folder / "optuna.log").read_bytes() == before
    write_search(tmp_path, question="Which?", budget={"runs": 3})
    assert len(run_search("toy", None).trials) == 12


@pytest.mark.parametrize("lines", [0, 1])
def test_a_kill_at_the_start_leaves_a_study_that_still_refuses_another_search_file(tmp_path: Path, lines: int) -> None:
    folder = write_search(tmp_path)
    run_search("toy", InProcess())
    journal = folder / "optuna.log"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:lines]))

    assert len(run_search("toy", None).trials) == 12
    run_search("toy", InProcess(killed_after=0))
    write_search(tmp_path, seed=1)
    with pytest.raises(UserError, match="made with another search file: seed"):
        run_search("toy", None)


def test_half_a_line_of_the_journal_costs_that_line_and_its_run_is_not_made_again(tmp_path: Path) -> None:
    folder = write_search(tmp_path)
    expected = course(run_search("toy", InProcess()))
    journal = folder / "optuna.log"
    journal.write_bytes(journal.read_bytes()[:-10])

    assert course(run_search("toy", InProcess(killed_after=0))) == expected
    assert course(run_search("toy", None)) == expected


def test_each_cell_changes_what_its_values_say(tmp_path: Path) -> None:
    write_search(tmp_path)

    found = run_search("toy", InProcess())
    for trial in found.trials:
        deep = trial.params["shape"] == "deep"
        changes: dict[str, object] = {"model.depth": 4, "model.name": "deep"} if deep else {"model.depth": 1}
        cell, numbers = (
            cell_of_trial("toy", found.prepared.search, trial),
            {key: trial.params[key] for key in ("model.rate", "model.width")},
        )
        assert cell.overrides == {"model.seed": 1} | numbers | changes
        assert cell.name == name_of(trial)
