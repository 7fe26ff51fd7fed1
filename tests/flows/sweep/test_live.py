"""A person sees of each cell what it is called and how it ended."""

import pytest
from rich.console import Console

from flows.experiments.cells import Cell
from flows.experiments.runs import Run
from flows.run.outcome import StageEnded, StageOutcome, StageResult, StageStarted
from flows.search.proposals import ProposedCell
from flows.sweep.live import Live


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
        live.on_ended(
            Run(
                cell=cell,
                state="failed",
                experiment="",
                commit="",
                baseline="",
                params={},
                reports={},
                curves={},
                ended="",
            )
        )
    Console(file=None).print(live._view())

    said = capsys.readouterr().out
    assert "rate 0.1: train stopped\nworse than the median\n" in said
    assert "rate 0.2, seed 7: train failed\nerror: no luck\n" in said
    assert "2 of 2 cells done, 1 stopped early, 1 failed" in said
