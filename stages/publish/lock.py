"""What dvc.lock records of the stages that led to a file."""

from collections.abc import Iterable, Iterator
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
    stages: Stages = YAML(typ="safe").load(path).get("stages", {})
    return stages


def recorded_section(stages: Stages, name: str) -> dict[str, Any]:
    """A section of params.yaml as the stage that depends on it last ran with; empty where none is recorded."""
    recorded = (stage.get("params", {}).get("params.yaml", {}) for stage in stages.values())
    section: dict[str, Any] = next((params[name] for params in recorded if name in params), {})
    return section


def recorded_versions(stages: Stages, output: Path) -> dict[str, str]:
    """Library -> version, of those that the maker of `output` depends on; empty where none is recorded."""
    makers = (
        stage for stage in stages.values() if any(out["path"] == output.as_posix() for out in stage.get("outs", []))
    )
    versions: dict[str, str] = next(makers, {}).get("params", {}).get("versions.yaml", {})
    return versions


def not_in_lock(stages: Stages, inputs: Iterable[str]) -> list[str]:
    """The inputs that no stage in dvc.lock has made."""
    known = output_paths(stages)
    return [path for path in inputs if not any(overlaps(path, out) for out in known)]


def output_paths(stages: Stages) -> list[str]:
    """The paths that the pipeline itself writes."""
    return [out["path"] for stage in stages.values() for out in stage.get("outs", [])]


def outside_deps(stages: Stages) -> Iterator[dict[str, Any]]:
    """The files and folders that stages depend on and that none of them makes, each once, as dvc.lock has them."""
    made, seen = output_paths(stages), set()
    for stage in stages.values():
        for dep in stage.get("deps", []):
            if dep["path"] not in seen and not any(overlaps(dep["path"], out) for out in made):
                seen.add(dep["path"])
                yield dep


def ancestors(stages: Stages, inputs: Iterable[str]) -> Stages:
    """The stages that the inputs come from, each after those that it depends on."""
    ordered: Stages = {}

    def add(paths: Iterable[str]) -> None:
        for name in sorted(stages):
            if name not in ordered and any(
                overlaps(path, out["path"]) for path in paths for out in stages[name].get("outs", [])
            ):
                add([dep["path"] for dep in stages[name].get("deps", [])])
                ordered[name] = stages[name]

    add(list(inputs))
    return ordered


def overlaps(path: str, other: str) -> bool:
    """Whether the paths are equal, or one contains the other."""
    return path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/")
