"""`record/dvc.lock` of a revision: what each stage read and wrote, by the hashes that DVC gives files and folders."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stages.formats.revision.provenance import RECORDED_LOCK
from stages.runtime.entry import UserError, first_line

LockEntry: TypeAlias = dict[str, Any]
"""Of a stage in dvc.lock: cmd, deps, params, outs."""

Stages: TypeAlias = dict[str, LockEntry]

FaultKind = Literal["missing", "differs", "unlisted", "unknown", "link", "unreadable"]

IN_WORDS: dict[FaultKind, str] = {
    "missing": "is missing",
    "differs": "differs from what was published",
    "unlisted": "is not part of this revision",
    "unknown": "is not a file that a revision can hold",
    "link": "is a link or a special file, which no revision holds",
    "unreadable": "cannot be read",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A file of a revision that is not as it was published."""

    path: str
    problem: FaultKind
    detail: str = ""
    """What was expected, and what was found."""

    def __str__(self) -> str:
        """In words."""
        return f"{self.path}: {IN_WORDS[self.problem]}" + (f": {self.detail}" if self.detail else "")


class DamagedError(UserError):
    """A file of a revision that is not what it should be."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"damaged: {path}: {why}")
        self.path, self.why = path, why


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
    """The stages of a revision's dvc.lock; empty where it has none. Raises DamagedError."""
    if not (folder / RECORDED_LOCK).is_file():
        return {}
    # YAML 1.2 as DVC writes it, in which 1e-05 is a number.
    content = read_yaml(folder, RECORDED_LOCK)
    try:
        _Lock.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise DamagedError(RECORDED_LOCK, f"is no dvc.lock ({where}: {first['msg']})") from None
    stages: Stages = content.get("stages", {})
    for path in (out["path"] for out in outs_of(stages)):
        if is_outside(path):
            raise DamagedError(RECORDED_LOCK, f"has the output {path}, which is outside of the project")
    return stages


def read_yaml(folder: Path, path: str) -> Any:
    """A YAML file of a revision. Raises DamagedError if it cannot be read as one."""
    try:
        return YAML(typ="safe", pure=True).load(folder / path)
    except (YAMLError, ValueError, RecursionError, OSError) as error:
        raise DamagedError(path, f"is no YAML ({first_line(error)})") from None


def outs_of(stages: Stages) -> Iterator[dict[str, Any]]:
    """All outputs."""
    return (out for entry in stages.values() for out in entry.get("outs", []))


def makers_of(stages: Stages) -> dict[str, str]:
    """Output -> the stage that makes it."""
    return {out["path"]: stage for stage, entry in stages.items() for out in entry.get("outs", [])}


def maker_of(makers: Mapping[str, str], path: str) -> str | None:
    """The stage that makes a file or folder of the project; None where no recorded one does."""
    return next((stage for out, stage in makers.items() if is_within(path, out)), None)


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


def folder_md5(files: Mapping[str, str]) -> str:
    """What DVC names a folder by, from its files' md5 by their paths in it (dvc_data.hashfile.tree.Tree)."""
    listing = [{"md5": files[path], "relpath": path} for path in sorted(files)]
    return f"{hashlib.md5(json.dumps(listing, sort_keys=True).encode(), usedforsecurity=False).hexdigest()}.dir"
