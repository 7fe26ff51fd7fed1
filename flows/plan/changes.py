"""Why a stage would run: what has changed since it ran last; and the deps that DVC could not even hash."""

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dvc.dependency import Dependency
from dvc.dependency.param import ParamsDependency
from dvc.output import Output
from dvc.repo import Repo
from dvc.stage import PipelineStage, Stage

from stages.runtime.entry import UserError
from stages.runtime.section import differences
from stages.runtime.stage_code import file_changes, library_changes

if TYPE_CHECKING:
    from flows.plan.stage_code import CodeFolder

ReasonKind = Literal[
    "parameter", "library", "code", "data", "upstream", "command", "output", "never run", "always", "asked"
]

FIXED_TEXT = {"command": "its command changed", "never run": "never run", "asked": "--force"}

NAMED_AT_MOST = 10

MISSING = "is missing"


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that makes a stage run."""

    kind: ReasonKind
    what: str
    """The parameter, library, file or stage."""
    old: Any = None
    """The value as of the last run, where it is known."""
    new: Any = None
    """The value now."""

    def __str__(self) -> str:
        match self.kind:
            case "parameter" | "library":
                return f"{self.what} {_short(self.old)} → {_short(self.new)}"
            case "code" | "data" | "output":
                return f"{self.what} {self.new}"
            case "upstream":
                return f"{self.what} runs before it"
            case "always":
                return f"runs every time: {self.what}"
            case _:
                return FIXED_TEXT[self.kind]


def reasons_to_run(stage: Stage, folders: "Sequence[CodeFolder]", made: Collection[str]) -> Iterator[Reason]:
    """What has changed since a stage ran last, as DVC compares it; `made`: the outputs of all stages."""
    if stage.is_callback:
        yield Reason("always", "it has neither deps nor outs")
        return
    if not any(out.hash_info for out in stage.outs) and not any(dep.hash_info for dep in stage.deps):
        yield Reason("never run", stage.addressing)
        return
    if stage.changed_stage():
        yield Reason("command", stage.addressing)
    if not stage.frozen:
        yield from _changed_deps(stage, folders, made)
    yield from _changed_outs(stage)


def _changed_deps(stage: Stage, folders: "Sequence[CodeFolder]", made: Collection[str]) -> Iterator[Reason]:
    if stage.always_changed:
        yield Reason("always", "always_changed in dvc.yaml")
    for dep in stage.deps:
        if isinstance(dep, ParamsDependency):
            yield from _changed_params(dep)
        else:
            kind: Literal["code", "data"] = "code" if str(dep).endswith(".py") else "data"
            folder = next((folder for folder in folders if Path(dep.fs_path).parent == folder.path), None)
            for path, status in (dep.status() or {}).items():
                # An upstream that has not run yet explains its own outputs.
                if status == "deleted" and (folder or path in made):
                    continue
                if not dep.hash_info:
                    yield Reason(kind, path, new="is new in dvc.yaml")
                    continue
                if folder:
                    yield from _changed_code(folder, dep)
                elif status == "deleted" and dep.protocol != "local":
                    yield Reason(kind, path, new="does not answer, or is gone")
                else:
                    yield Reason(kind, path, new=status)


def _changed_code(folder: "CodeFolder", dep: Dependency) -> Iterator[Reason]:
    known = folder.changes(dep)
    files = file_changes(*known) if known else {}
    libraries = library_changes(*known) if known else []
    yield from (Reason("code", file, new=how) for file, how in files.items())
    yield from (Reason("library", *change) for change in libraries)
    if not files and not libraries:
        yield Reason("code", "its code", new="changed")


def _changed_outs(stage: Stage) -> Iterator[Reason]:
    states = {str(out): status for out in stage.outs if (status := _output_state(out))}
    missing = [path for path, status in states.items() if status == MISSING]
    restored = recorded = ""
    if stage.frozen:  # DVC neither runs it nor restores its outputs: it records them as they are, or fails
        restored = f", and the stage is frozen: `dvc checkout {stage.addressing}` restores it"
        recorded = ", and the stage is frozen: DVC records it"
    if len(missing) > 1:
        yield Reason("output", f"{missing[0]} and {len(missing) - 1} more", new=f"are missing{restored}")
    elif missing:
        yield Reason("output", missing[0], new=f"{MISSING}{restored}")
    for path, status in states.items():
        if path not in missing:
            yield Reason("output", path, new=f"{status}{recorded}")


def _output_state(out: Output) -> str:
    """What is wrong with an output, in words; nothing where it is as recorded."""
    status = next(iter((out.status() or {}).values()), "")
    if status == "not in cache":
        return "is not in DVC's cache" if out.exists else MISSING
    return MISSING if status == "deleted" else status


def _changed_params(dep: ParamsDependency) -> Iterator[Reason]:
    before = dep.hash_info.value if dep.hash_info else {}
    now = dep.read_params()
    for name in dep.params:
        for key, old, new in differences(name, before.get(name), now.get(name)):
            yield Reason("parameter", key, old, new)


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def check_deps(repo: Repo, stages: Iterable[PipelineStage]) -> None:
    """Raise UserError that names them and says what to do."""
    own_outs = {out.fs_path for stage in repo.index.stages for out in stage.outs}
    deps = {dep.fs_path for stage in stages for dep in stage.deps if dep.protocol == "local"}
    found = [line for path in sorted(deps - own_outs) for line in _unhashable(repo, path)]
    if found:
        more = f" and {len(found) - NAMED_AT_MOST} more" if len(found) > NAMED_AT_MOST else ""
        raise UserError(
            f"DVC cannot read {', '.join(found[:NAMED_AT_MOST])}{more}; "
            "remove or rename each, or add its path to .dvcignore"
        )


def _unhashable(repo: Repo, path: str) -> Iterator[str]:
    for folder, folders, files in repo.dvcignore.walk(repo.fs, path):
        for name in sorted([*folders, *files]):
            file = Path(folder, name)
            shown = repr(os.path.relpath(file, repo.root_dir))
            if name != name.encode("utf-8", "replace").decode("utf-8"):
                yield f"{shown} (its name is not UTF-8)"
            elif not file.exists():
                yield f"{shown} (a link to nowhere)"
            elif not stat.S_ISREG(mode := file.stat().st_mode) and not stat.S_ISDIR(mode):
                yield f"{shown} (not a regular file)"
