"""A small search over a toy model, and what runs its cells within the process, with the signature of a sweep's."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from flows.experiments.cells import Cell
from flows.experiments.runs import Batch, Run, append_run
from stages.runtime.section import read_params_file
from tests.small_project import make_repository

SEARCH: dict[str, Any] = {
    "question": "Which rate is best?",
    "targets": ["train"],
    "base": {"model.seed": 1},
    "space": {
        "model.rate": {"low": 0.001, "high": 1.0, "log": True},
        "model.width": {"low": 8, "high": 64, "step": 8, "integer": True},
        "shape": {"choices": {"flat": {"model.depth": 1}, "deep": {"model.depth": 4, "model.name": "deep"}}},
    },
    "objective": {"source": "scores.json:loss", "better": "lower"},
    "sampler": "tpe",
    "seed": 0,
    "at_once": 3,
    "startup_runs": 5,
    "budget": {"runs": 12},
    "stop_early": {"curve": "curve.tsv:loss", "steps": "model.steps", "after": 0.3, "worse_than": "median"},
}

PARAMS: dict[str, Any] = {
    "model": {"rate": 0.1, "width": 16, "depth": 2, "name": "a", "seed": 0, "steps": 10},
    "other": {"rate": 0.5},
}

DVC_YAML = """\
stages:
  train:
    cmd: python train.py
    params: [model]
    metrics: [scores.json: {cache: false}]
    plots: [curve.tsv]
"""


def write_search(folder: Path, **changes: Any) -> Path:
    """Write `searches/toy.yaml` with some keys replaced into the project; the folder of its results."""
    (folder / "searches").mkdir(exist_ok=True)
    (folder / "searches/toy.yaml").write_text(yaml.safe_dump(SEARCH | changes, sort_keys=False))
    return folder / "searches/toy"


def make_project(folder: Path) -> None:
    """A repository with params.yaml and dvc.yaml."""
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS, sort_keys=False))
    (folder / "dvc.yaml").write_text(DVC_YAML)
    make_repository(folder)


def loss_of(model: Mapping[str, Any]) -> float:
    """Lowest, 1.0, at rate 0.03 and width 48 of the flat shape; a logistic rate of 1.0 is 1.5 off."""
    return 1.0 + abs(math.log10(model["rate"] / 0.03)) + abs(model["width"] - 48) / 40 + 0.1 * (model["depth"] - 1)


class Killed(BaseException):
    """The process dies."""


@dataclass
class InProcess:
    """Runs cells one after another, and records them."""

    killed_after: int | None = None
    """Runs, counted over all batches."""
    reads_curves: bool = True
    """Whether a run's curve is read after each point, or never while it runs."""
    fails: Callable[[Cell], str] = lambda cell: ""
    """The message with which a run fails."""
    dies: Callable[[Cell], str] = lambda cell: ""
    """The message with which a run is killed: it has no result, and is not recorded."""
    ran: list[str] = field(default_factory=list)
    """The experiments of all runs that were made."""

    def __call__(
        self,
        batch: Batch,
        *,
        stop_early: Callable[[Cell, Mapping[str, list[tuple[float, float]]]], str] | None = None,
    ) -> list[Run]:
        assert batch.targets == ["train"]
        assert "scores.json" in batch.reports
        runs = []
        for cell in batch.cells:
            if len(self.ran) == self.killed_after:
                raise Killed
            self.ran.append(cell.name)
            runs.append(self.run(cell, read_params_file(), stop_early if self.reads_curves else None))
            if message := self.dies(cell):
                runs[-1] = runs[-1].model_copy(update={"state": "cancelled", "message": message})
            else:
                append_run(batch.record, runs[-1])
        return runs

    def run(self, cell: Cell, values: Mapping[str, Any], stop_early: Callable[..., str] | None = None) -> Run:
        """The run of a cell on these values of params.yaml."""
        params = cell.params(values)
        model = params["model"]
        message, points = self.fails(cell), list[tuple[float, float]]()
        for step in range(1, model["steps"] + 1):
            points.append((float(step), loss_of(model) + 2 / step))
            message = message or (stop_early(cell, {"curve.tsv:loss": points}) if stop_early else "")
            if message:
                break
        return Run(
            cell=cell.id,
            state="failed" if message else "finished",
            experiment="" if message else cell.name,
            commit="" if message else f"c{cell.id}",
            baseline="start",
            params=params,
            reports={} if message else {"scores.json": {"loss": loss_of(model), "flop": 1e12}},
            curves={"curve.tsv:loss": points},
            ended="2026-01-01T00:00:00",
            message=message,
        )
