"""A person sees of each cell what it is called and how it ended."""

import pytest
from rich.console import Console

from flows.experiments.cells import Cell
from flows.experiments.runs import Run, RunState
from flows.run.outcome import StageEnded, StageOutcome, StageResult, StageStarted
from flows.search.proposals import ProposedCell
from flows.sweep.cell_runner import Live


def run_of(cell: str, state: RunState) -> Run:
    return Run(
        cell=cell, state=state, experiment="", commit="", baseline="", params={}, reports={}, curves={}, ended=""
    )


def ended(cell: str, result: StageResult, message: str) -> StageEnded:
    stage = f"{cell}/train"
    return StageEnded(stage, StageOutcome(stage, result, 1.0, message=message))


def test_a_run_that_is_stopped_early_has_not_failed_and_a_search_has_no_seeds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cells = {
        "a": ProposedCell("a", "toy-0001-a", {"rate": "rate 0.1"}, 0, {}),
        "b": Cell("b", "toy-b", {"rate": "rate 0.2"}, 7, {}),
    }
    live = Live("search toy", cells, [f"{cell}/train" for cell in cells], known=0)

    ends: list[tuple[str, StageResult, str]] = [
        ("a", "stopped", "worse than the median"),
        ("b", "failed", "error: no luck"),
    ]
    for cell, result, message in ends:
        live.on_event(StageStarted(stage=f"{cell}/train", attempt=1))
        live.on_event(ended(cell, result, message))
        live.on_ended(run_of(cell, "failed"))
    Console(file=None).print(live._view())

    said = capsys.readouterr().out
    assert "rate 0.1: train stopped\nworse than the median\n" in said
    assert "rate 0.2, seed 7: train failed\nerror: no luck\n" in said
    assert "2 of 2 cells done, 1 stopped early, 1 failed" in said


def test_a_cell_has_finished_after_its_last_stage_although_it_is_recorded_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cells = {cell: Cell(cell, f"toy-{cell}", {"rate": cell}, 0, {}) for cell in ("a", "b")}
    live = Live("sweep toy", cells, ["a/clean", "a/train"], known=0)

    live.on_ended(run_of("b", "finished"))  # it has nothing left to do
    live.on_event(StageEnded("a/clean", StageOutcome("a/clean", "ran", 1.0, "")))
    live.on_ended(run_of("a", "finished"))
    live.on_event(ended("a", "ran", ""))

    assert capsys.readouterr().out.splitlines() == [
        "1/2 b, seed 0: finished",
        "a, seed 0: clean ran in 1.0 s",
        "a, seed 0: train ran in 1.0 s",
        "2/2 a, seed 0: finished",
    ]
