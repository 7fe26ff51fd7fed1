"""What dvc.lock records of the stages that led to a file."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

from ruamel.yaml import YAML

LOCK = Path("dvc.lock")

Stages: TypeAlias = dict[str, dict[str, Any]]
"""Stage -> its entry: cmd, deps, params, outs."""


def read_lock(path: Path = LOCK) -> Stages:
    """The stages of dvc.lock; empty where nothing is locked yet."""
    if not path.exists():
        return {}
    # YAML 1.2 as DVC writes it, in which 1e-05 is a number.
    stages: Stages = YAML(typ="safe", pure=True).load(path).get("stages", {})
    return stages


def recorded_params(stages: Stages, output: Path, file: str = "params.yaml") -> dict[str, Any]:
    """The parameters that the maker of `output` ran with, as its lock entry records them; empty where none does."""
    for stage in stages.values():
        if any(out["path"] == output.as_posix() for out in stage.get("outs", [])):
            params: dict[str, Any] = stage.get("params", {}).get(file, {})
            return params
    return {}


def not_in_lock(stages: Stages, inputs: Iterable[str]) -> list[str]:
    """The inputs that no stage in dvc.lock has made."""
    known = output_paths(stages)
    return [path for path in inputs if not any(overlaps(path, out) for out in known)]


def output_paths(stages: Stages) -> list[str]:
    """The paths that the pipeline itself writes."""
    return [out["path"] for stage in stages.values() for out in stage.get("outs", [])]


def ancestors(stages: Stages, inputs: Iterable[str]) -> list[dict[str, Any]]:
    """The entries of the stages that the inputs come from, each after those that it depends on."""
    ordered: Stages = {}

    def add(paths: Iterable[str]) -> None:
        for name in sorted(stages):
            if name not in ordered and any(
                overlaps(path, out["path"]) for path in paths for out in stages[name].get("outs", [])
            ):
                add([dep["path"] for dep in stages[name].get("deps", [])])
                ordered[name] = {"stage": name} | stages[name]

    add(list(inputs))
    return list(ordered.values())


def overlaps(path: str, other: str) -> bool:
    """Whether the paths are equal, or one contains the other."""
    return path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/")
