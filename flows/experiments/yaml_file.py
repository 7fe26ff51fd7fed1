"""What the files of experiments and of searches have in common: their names, how they are read, kinds of values.

They are read as params.yaml is: every key known, every value of its type, and one message for each fault.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from stages.runtime.atomic import atomic_write
from stages.runtime.entry import UserError
from stages.runtime.section import SectionT, check_section, read_params_file

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


def named_path(folder: Path, name: str) -> Path:
    """The file of an experiment or a search in its folder, given by its name or its path."""
    path = Path(name)
    return path if path.suffix in (".yaml", ".yml") else folder / f"{path.name}.yaml"


def experiment_path(name: str) -> Path:
    """The file of an experiment, given by its name or its path."""
    return named_path(EXPERIMENTS, name)


def bare_name(name: str) -> str:
    """The name of an experiment, given by its name or its path."""
    return experiment_path(name).stem


def write_new(kind: Literal["experiment", "search"], path: Path) -> str:
    """Write a file to fill in, which runs as it is, and say what to do with it.

    The project's conf/ has the text, as it knows its stages and reports. Raises UserError if the file is there already,
    or the text is not.
    """
    template = Path(f"conf/new_{kind}.yaml")
    if not template.is_file():
        raise UserError(f"{template}: not found; it is the text that a new {kind} begins with")
    if path.exists():
        raise UserError(f"{path} is there already; choose another name, or remove it")
    atomic_write(path, template.read_text(encoding="utf-8").replace("NAME", path.stem))
    return f"wrote {path}: edit it, commit it"


def read_checked(path: Path, model: type[SectionT]) -> SectionT:
    """Read a file of this model. Raises UserError that names each bad key, its value and what is allowed."""
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml")))
        raise UserError(f"{path}: not found; {path.parent}/ has {there or 'none'}")
    return check_section("", read_params_file(path), model, path)
