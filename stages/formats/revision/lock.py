"""`record/dvc.lock` of a revision: what each stage read and wrote, by the hashes that DVC gives files and folders."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stages.formats.revision.provenance import RECORDED_LOCK
from stages.runtime.errors import UserError, first_line
from stages.runtime.stage_code import FOLDER

LockEntry: TypeAlias = dict[str, Any]
"""Of a stage in dvc.lock: cmd, deps, params, outs."""

Stages: TypeAlias = dict[str, LockEntry]


class _Item(BaseModel, strict=True):
    path: str
    md5: str | None = None


class _Stage(BaseModel, strict=True):
    cmd: str | list[str]
    deps: list[_Item] = []
    outs: list[_Item] = []
    params: dict[str, dict[str, Any]] = {}


class _Lock(BaseModel, strict=True):
    stages: dict[str, _Stage] = {}


def read_recorded_lock(folder: Path) -> Stages:
    """The stages of a revision's dvc.lock; empty if it has none. Raises UserError if it is damaged."""
    if not (folder / RECORDED_LOCK).is_file():
        return {}
    try:
        # YAML 1.2 as DVC writes it, in which 1e-05 is a number.
        content = YAML(typ="safe", pure=True).load(folder / RECORDED_LOCK)
        _Lock.model_validate(content)
    except (YAMLError, ValueError, RecursionError, OSError) as error:
        raise UserError(f"damaged: {RECORDED_LOCK}: is no dvc.lock ({first_line(error)})") from None
    stages: Stages = content.get("stages", {})
    for path in (out["path"] for out in outs_of(stages)):
        if is_outside(path):
            raise UserError(f"damaged: {RECORDED_LOCK}: has the output {path}, which is outside of the project")
    return stages


def outs_of(stages: Stages) -> Iterator[dict[str, Any]]:
    """All outputs."""
    return (out for entry in stages.values() for out in entry.get("outs", []))


def makers_of(stages: Stages) -> dict[str, str]:
    """Output -> the stage that makes it."""
    return {out["path"]: stage for stage, entry in stages.items() for out in entry.get("outs", [])}


def maker_of(makers: Mapping[str, str], path: str) -> str | None:
    """The stage that makes a file or folder of the project; None where no recorded one does."""
    return next((stage for out, stage in makers.items() if is_within(path, out)), None)


def ancestors(stages: Stages, inputs: Iterable[str]) -> Stages:
    """The stages that the inputs come from, each after those that it depends on.

    The stage that records the code is left out: it depends on every file of code, and its results are kept themselves.
    """
    ordered: Stages = {}

    def add(paths: Iterable[str]) -> None:
        for name in sorted(stages):
            if name not in ordered and any(
                overlaps(path, out["path"]) and out["path"] != FOLDER.as_posix()
                for path in paths
                for out in stages[name].get("outs", [])
            ):
                add([dep["path"] for dep in stages[name].get("deps", [])])
                ordered[name] = stages[name]

    add(list(inputs))
    return ordered


def is_within(path: str, folder: str) -> bool:
    """Whether the paths are equal, or the second contains the first."""
    return path == folder or path.startswith(f"{folder}/")


def overlaps(path: str, other: str) -> bool:
    """Whether the paths are equal, or one contains the other."""
    return is_within(path, other) or is_within(other, path)


def is_outside(path: str) -> bool:
    """Whether a path that should be relative to the project may lead out of it."""
    return Path(path).is_absolute() or ".." in Path(path).parts


def hash_of(entry: LockEntry) -> str | None:
    """The hash that dvc.lock has of a dependency or output."""
    return entry.get(entry.get("hash", "md5"))
