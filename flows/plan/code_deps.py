"""Whether dvc.yaml lists the code that its stages import. What it does not list can change unnoticed."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.runtime.code import import_closure

REMEDY = "run `python -m flows.project.closure --write`"

_STAGE_COMMAND = re.compile(r"python -m (stages(?:\.\w+)+)")


@dataclass(frozen=True, slots=True)
class StaleDeps:
    """A stage whose code deps are not its import closure."""

    stage: str
    missing: tuple[str, ...]
    """Imported and not listed: a change of these files would go unnoticed."""
    extra: tuple[str, ...]
    """Listed and no longer imported: a change of these files would run the stage for nothing."""

    def __str__(self) -> str:
        parts = (("not listed", self.missing), ("no longer imported", self.extra))
        return f"{self.stage}: " + "; ".join(f"{what}: {', '.join(files)}" for what, files in parts if files)


def stale_deps(name: str, command: object, deps: Sequence[str], root: Path = Path()) -> StaleDeps | None:
    """How a stage's code deps differ from what its command imports; None where they do not, or it runs other code."""
    closure = set(command_closure(command, root))
    listed = set(code_deps(deps))
    if not closure or closure == listed:
        return None
    return StaleDeps(name, tuple(sorted(closure - listed)), tuple(sorted(listed - closure)))


def stale_stages(stages: Mapping[str, Mapping[str, Any]]) -> Iterator[StaleDeps]:
    """Those of dvc.yaml's `stages` that do not list what they import."""
    for name, stage in stages.items():
        if stale := stale_deps(name, stage.get("cmd"), stage.get("deps") or ()):
            yield stale


def command_closure(command: object, root: Path = Path()) -> list[str]:
    """The files that a command `python -m stages.NAME` imports; none where it is another, or not of this project."""
    found = _STAGE_COMMAND.search(str(command))
    return import_closure(found.group(1), root.absolute()) if found else []


def code_deps(deps: Sequence[str]) -> list[str]:
    """Of a stage's deps those that are code of ours."""
    return [dep for dep in deps if dep.startswith("stages/") and dep.endswith(".py")]
