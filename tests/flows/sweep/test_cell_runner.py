"""A person sees of each cell what it is called and how it ended."""

import pytest

from flows.experiments.cells import Cell
from flows.experiments.runs import Run, RunState
from flows.run.outcome import StageEnded, StageOutcome, StageResult
from flows.sweep.cell_runner import Live


def run_of(cell: str, state: RunState) -> Run:
    return Run(
        cell=cell, state=state, experiment="", commit="", baseline="", params={}, reports={}, curves={}, ended=""
    )


def ended(cell: str, result: StageResult, message: str) -> StageEnded:
    stage = f"{cell}/train"
    return StageEnded(stage, StageOutcome(stage, result, 1.0, message=message))


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
