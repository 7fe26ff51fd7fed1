"""A small experiment over two parameters, as a file's values and as params.yaml beside it."""

from pathlib import Path
from typing import Any

import yaml

from flows.experiments.cells import Cell, cells_of, read_experiment
from flows.experiments.experiment import Experiment


def b_is_better(size: str) -> dict[str, Any]:
    """The condition that recipe b has a lower loss than a."""
    return {"difference": "loss", "levels": {"recipe": ["b", "a"], "size": size}, "high": {"below": 0}}


EXPERIMENT: dict[str, Any] = {
    "question": "Does b help?",
    "targets": ["train"],
    "axes": {
        "size": {"small": {"model.width": 1}, "large": {"model.width": 4}},
        "recipe": {"a": {"model.name": "a"}, "b": {"model.name": "b"}},
    },
    "seeds": {"keys": ["model.seed"], "values": [0, 1, 2]},
    "metrics": {
        "loss": {
            "label": "loss",
            "unit": "nats",
            "decimals": 2,
            "source": "scores.json:loss",
            "interval": "scores.json:interval",
        },
        "cost": {"label": "cost", "decimals": 1, "source": "scores.json:cost"},
        "half": {"label": "cost", "unit": "pairs", "source": "scores.json:cost", "scale": 2},
    },
    "curves": {"held_out": {"label": "loss", "unit": "nats", "source": "curve.tsv:loss"}},
    "fits": {"law": {"x": "cost", "y": "loss"}},
    "comparisons": {"recipes": {"caption": "b against a", "axis": "recipe", "baseline": "a", "metrics": ["loss"]}},
    "tables": {"main": {"caption": "All & every run.", "rows": ["size", "recipe"], "metrics": ["cost", "loss"]}},
    "figures": {
        "curves": {"kind": "curves", "caption": "Curves.", "curve": "held_out"},
        "points": {"kind": "points", "caption": "L", "x": "cost", "y": "loss", "by": "size", "log": ["x", "y"]},
    },
    "claims": [
        {"says": "b is better.", "holds_if": [b_is_better("small")]},
        {
            "says": "Cost helps.",
            "holds_if": [
                {"exponent": "law", "low": {"above": 0}},
                {"mean": "loss", "levels": {"recipe": "a", "size": "large"}, "value": {"below": "cost"}},
            ],
        },
    ],
}

PARAMS: dict[str, Any] = {"model": {"width": 2, "name": "a", "seed": 0}, "other": {"rate": 0.5}}


def write_experiment(folder: Path, **changes: Any) -> None:
    """Write `experiments/toy.yaml` with some keys replaced, and params.yaml, into the current project."""
    (folder / "experiments").mkdir(exist_ok=True)
    (folder / "experiments/toy.yaml").write_text(yaml.safe_dump(EXPERIMENT | changes, sort_keys=False))
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS, sort_keys=False))


def small_experiment(folder: Path, **changes: Any) -> tuple[Experiment, list[Cell]]:
    """The experiment with its 12 cells: sizes small and large, recipes a and b, seeds 0 to 2."""
    write_experiment(folder, **changes)
    experiment = read_experiment("toy")
    return experiment, cells_of("toy", experiment)
