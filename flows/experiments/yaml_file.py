"""The file of an experiment: its path, its plain values, and the types of values in it."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from stages.runtime.entry import UserError
from stages.runtime.section import read_params_file

EXPERIMENTS = Path("experiments")

Overrides = dict[str, Any]
"""What a run changes: a dotted key of params.yaml with its value, or a group of conf/ with its choice."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
ReportKey = Annotated[str, Field(pattern=r"^[^:\s]+\.json:[^:\s]+$")]
CurveColumn = Annotated[str, Field(pattern=r"^[^:\s]+\.(tsv|csv):[^:\s]+$")]


def _levels(axis: Any) -> Any:
    """An axis with `{param: KEY, values: [...]}` written as a level for each value."""
    if not isinstance(axis, dict) or axis.keys() != {"param", "values"} or not isinstance(axis["values"], list):
        return axis
    key, names = axis["param"], [str(value) for value in axis["values"]]
    if not isinstance(key, str):
        raise ValueError(f"param = {key!r}: give one dotted key of params.yaml")
    if twice := sorted({level for level in names if names.count(level) > 1}):
        raise ValueError(f"values: {', '.join(twice)} is there twice")
    return {level: {key: value} for level, value in zip(names, axis["values"], strict=True)}


Axis = Annotated[dict[str, Overrides], Field(min_length=1), BeforeValidator(_levels)]
"""The levels of an axis, each a name with its overrides. `{param: KEY, values: [...]}` is short for a level a value."""


def experiment_path(name: str) -> Path:
    """The file of an experiment, given by its name or its path."""
    path = Path(name)
    return path if path.suffix in (".yaml", ".yml") else EXPERIMENTS / f"{path.name}.yaml"


def bare_name(name: str) -> str:
    """The name of an experiment, given by its name or its path."""
    return experiment_path(name).stem


def read_values(path: Path) -> dict[str, Any]:
    """The plain values of a file. Raises UserError if it does not exist."""
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml")))
        raise UserError(f"{path}: not found; {path.parent}/ has {there or 'none'}")
    return read_params_file(path)
