"""Runs of the small experiment, made up: recipe b is better by 0.3, and the loss falls with the width."""

from collections.abc import Iterable
from pathlib import Path

from flows.experiments.cells import Cell
from flows.experiments.record import Run
from flows.experiments.runs import Tidy, tidy
from tests.flows.experiments.small_experiment import PARAMS, b_is_better, small_experiment

WIDTHS = {"size": {f"w{width}": {"model.width": width} for width in (1, 2, 4, 8)}}

NAME = "toy"

SMALLEST = {"size": "w1", "recipe": "a"}


def finished(cell: Cell, loss: float | None = None) -> Run:
    """A finished run of a cell."""
    params = cell.params(PARAMS)
    width, seed = params["model"]["width"], cell.seed
    if loss is None:
        loss = 5 * width**-0.2 - (0.3 if cell.levels["recipe"] == "b" else 0) + 0.01 * ((seed * 7 + width) % 3)
    return Run(
        cell=cell.id,
        state="finished",
        experiment=cell.name,
        commit=f"c{cell.id}",
        baseline="start",
        params=params,
        reports={"scores.json": {"loss": loss, "interval": [loss - 0.5, loss + 0.5], "cost": float(width**2)}},
        curves={"curve.tsv:loss": [(step, loss * (1 + 2 / step)) for step in (1.0, 2.0, 5.0, 10.0)]},
        ended="2026-01-01T00:00:00",
    )


def some_data(folder: Path, lacking: Iterable[int] = ()) -> Tidy:
    """Four widths, two recipes, three seeds; the cells at these positions have failed."""
    axes = {"recipe": {"a": {"model.name": "a"}, "b": {"model.name": "b"}}}
    claims = [
        {"says": "b is better.", "holds_if": [b_is_better("w8")]},
        {"says": "a is better.", "holds_if": [b_is_better("w8") | {"high": {"at_least": 0}}]},
        {"says": "Width helps.", "holds_if": [{"exponent": "law", "low": {"above": 0}}]},
        {"says": "Few units.", "holds_if": [{"mean": "cost", "levels": SMALLEST, "value": {"at_most": 1}}]},
    ]
    experiment, cells = small_experiment(
        folder,
        axes={"size": WIDTHS["size"]} | axes,
        claims=claims,
    )
    runs = [finished(cell) for cell in cells]
    for index in lacking:
        runs[index] = runs[index].model_copy(update={"state": "failed", "reports": {}, "message": "no luck"})
    return tidy(NAME, experiment, cells, runs)
