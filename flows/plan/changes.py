"""Why a stage would run: what has changed since it ran last; and the deps that DVC could not even hash.

A stage depends on one file of the folder of code (`stages.runtime.stage_code`). Whoever plans writes these files
first, as the DVC stage that records the code will. A dvc.yaml without such a stage is planned as any other.
"""

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dvc.dependency import Dependency
from dvc.dependency.param import ParamsDependency
from dvc.output import Output
from dvc.repo import Repo
from dvc.stage import PipelineStage, Stage

from stages.runtime.atomic import atomic_write
from stages.runtime.errors import UserError
from stages.runtime.section import as_yaml, differences
from stages.runtime.stage_code import FOLDER, WRITER, code_in, file_changes, library_changes, modules_of, stage_codes

ReasonKind = Literal[
    "parameter", "library", "code", "data", "upstream", "command", "output", "never run", "always", "asked"
]

FIXED_TEXT = {"command": "its command changed", "never run": "never run", "asked": "--force"}

MAX_NAMED_CHANGES = 10

LONGEST_VALUE = 60
"""Letters of a parameter's value in the line that says why a stage runs."""

MISSING_REASON = "is missing"


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that makes a stage run."""

    kind: ReasonKind
    what: str
    """The parameter, library, file or stage."""
    old: Any = None
    """The value of the last run, if known."""
    new: Any = None
    """The value now."""

    def __str__(self) -> str:
        match self.kind:
            case "parameter":
                return f"{self.what} {_change(self.old, self.new)}"
            case "library":
                return f"{self.what} {self.old or 'nothing'} → {self.new or 'nothing'}"
            case "code" | "data" | "output":
                return f"{self.what} {self.new}"
            case "upstream":
                return f"after {self.what}"
            case "always":
                return f"runs every time: {self.what}"
            case _:
                return FIXED_TEXT[self.kind]


def reasons_to_run(stage: Stage, folders: Collection[Path], made: Collection[str]) -> Iterator[Reason]:
    """The changes since a stage last ran, as DVC compares them; `folders`: of code; `made`: all outputs."""
    if stage.is_callback:
        yield Reason("always", "it has neither deps nor outs")
        return
    if not any(out.hash_info for out in stage.outs) and not any(dep.hash_info for dep in stage.deps):
        yield Reason("never run", stage.addressing)
        return
    if stage.changed_stage():
        yield Reason("command", stage.addressing)
    if not stage.frozen:  # as what `dvc import` brings is, whose source need not answer
        yield from _changed_deps(stage, folders, made)
    if not writes_code(stage):  # its outputs are as it will write them
        yield from _changed_outs(stage)


def _changed_deps(stage: Stage, folders: Collection[Path], made: Collection[str]) -> Iterator[Reason]:
    if stage.always_changed:
        yield Reason("always", "always_changed in dvc.yaml")
    for dep in stage.deps:
        if isinstance(dep, ParamsDependency):
            yield from _changed_params(dep)
        else:
            kind: Literal["code", "data"] = "code" if str(dep).endswith(".py") else "data"
            is_record = Path(dep.fs_path).parent in folders
            for path, status in (dep.status() or {}).items():
                # An upstream that has not run yet explains its own outputs.
                if status == "deleted" and (is_record or path in made):
                    continue
                if not dep.hash_info:
                    yield Reason(kind, path, new="is new in dvc.yaml")
                    continue
                if is_record:
                    yield from _changed_code(dep)
                else:
                    yield Reason(kind, path, new=status)


def _changed_code(dep: Dependency) -> Iterator[Reason]:
    was = Path(dep.repo.cache.local.oid_to_path(dep.hash_info.value))
    old, new = code_in(was), code_in(Path(dep.fs_path))
    files = file_changes(old, new) if old and new else {}
    libraries = library_changes(old, new) if old and new else []
    yield from (Reason("code", file, new=how) for file, how in files.items())
    yield from (Reason("library", *change) for change in libraries)
    if not files and not libraries:
        yield Reason("code", "its code or a library", new="changed")


def _changed_outs(stage: Stage) -> Iterator[Reason]:
    states = {str(out): status for out in stage.outs if (status := _output_state(out))}
    missing = [path for path, status in states.items() if status == MISSING_REASON]
    if len(missing) > 1:
        yield Reason("output", f"{missing[0]} and {len(missing) - 1} more", new="are missing")
    elif missing:
        yield Reason("output", missing[0], new=MISSING_REASON)
    for path, status in states.items():
        if path not in missing:
            yield Reason("output", path, new=status)


def _output_state(out: Output) -> str:
    """Describe the fault of an output; empty if it is as recorded."""
    status = next(iter((out.status() or {}).values()), "")
    if status == "not in cache":
        return "is not in DVC's cache" if out.exists else MISSING_REASON
    return MISSING_REASON if status == "deleted" else status


def _changed_params(dep: ParamsDependency) -> Iterator[Reason]:
    before = dep.hash_info.value if dep.hash_info else {}
    now = dep.read_params()
    for name in dep.params:
        for key, old, new in differences(name, before.get(name), now.get(name)):
            yield Reason("parameter", key, old, new)


def _change(old: Any, new: Any) -> str:
    """Both values as YAML writes them. Long ones are cut so that what differs is shown."""
    texts = [as_yaml(value) for value in (old, new)]
    start = 0
    if max(map(len, texts)) > LONGEST_VALUE:
        same = next((i for i, (one, two) in enumerate(zip(*texts, strict=False)) if one != two), min(map(len, texts)))
        start = max(0, same - LONGEST_VALUE // 3)
    return " → ".join(_cut(text, start) for text in texts)


def _cut(text: str, start: int) -> str:
    shown = text[start : start + LONGEST_VALUE]
    return ("..." if start else "") + shown + ("..." if start + LONGEST_VALUE < len(text) else "")


def check_deps(repo: Repo, stages: Iterable[PipelineStage]) -> None:
    """Raise UserError that names the files that DVC could not hash, or that no stage makes and are not there."""
    own_outs = {out.fs_path for stage in repo.index.stages for out in stage.outs}
    readers = {dep.fs_path: stage for stage in stages for dep in stage.deps if dep.protocol == "local"}
    for path, stage in readers.items():
        if not Path(path).exists() and own_outs.isdisjoint((path, *map(str, Path(path).parents))):
            raise UserError(
                f"{os.path.relpath(path, repo.root_dir)}: not found, but {stage.addressing} reads it: restore it "
                "(`git checkout` if git tracks it), or correct its path in dvc.yaml"
            )
    deps = readers.keys()
    found = [line for path in sorted(deps - own_outs) for line in _unhashable(repo, path)]
    if found:
        more = f" and {len(found) - MAX_NAMED_CHANGES} more" if len(found) > MAX_NAMED_CHANGES else ""
        raise UserError(
            f"DVC cannot read {', '.join(found[:MAX_NAMED_CHANGES])}{more}; "
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
                yield f"{shown} (a broken link)"
            elif not stat.S_ISREG(mode := file.stat().st_mode) and not stat.S_ISDIR(mode):
                yield f"{shown} (not a regular file)"


def record_codes(stages: Iterable[Stage]) -> set[Path]:
    """Write what the stage that records the code would write now; the folders of code, mostly one.

    Then DVC's own comparison says exactly whose code has changed. Raises UserError where code is not Python.
    """
    folders = set()
    for stage in filter(writes_code, stages):
        root = Path(stage.wdir)
        folders.add(root / FOLDER)
        for path, code in stage_codes(root).items():
            if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != code.text:
                atomic_write(root / path, code.text)
    return folders


def writes_code(stage: Stage) -> bool:
    """Whether a stage is the one that records the code of the others."""
    return isinstance(stage, PipelineStage) and WRITER in modules_of(stage.cmd)
