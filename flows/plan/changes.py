"""Why a stage would run: the changes since its last run; and deps that DVC cannot hash.

A stage depends on its file of code (`stages.runtime.stage_code`). Planning first writes these files, as the DVC stage
that records the code will, if dvc.yaml has one.
"""

import os
import re
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
    "parameter", "library", "code", "data", "made", "upstream", "command", "output", "never run", "always", "asked"
]
"""`made`: an output of another stage, which has run since; `output`: one of its own."""

FIXED_TEXT = {"command": "its command changed", "never run": "no result yet", "asked": "--force"}

MAX_NAMED_CHANGES = 10

LONGEST_VALUE = 60
"""The maximum length of a parameter's value in a reason."""

LONG_LIST = re.compile(r"\[[^],[]*(?:,[^],[]*){10,}\]")

MISSING_REASON = "is missing"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why a stage runs."""

    kind: ReasonKind
    what: str
    """The parameter, library, file or stage."""
    old: Any = None
    """The value in the last run, if known."""
    new: Any = None
    """The current value."""

    def __str__(self) -> str:
        match self.kind:
            case "parameter":
                return f"{self.what} {' → '.join(both_shown(self.old, self.new))}"
            case "library":
                return f"{self.what} {self.old or 'nothing'} → {self.new or 'nothing'}"
            case "code" | "data" | "made" | "output":
                return f"{self.what} {self.new}"
            case "upstream":
                return f"after {self.what}"
            case "always":
                return f"runs every time: {self.what}"
            case _:
                return FIXED_TEXT[self.kind]


def reasons_to_run(stage: Stage, folders: Collection[Path], made: Collection[str]) -> Iterator[Reason]:
    """Yield the changes since a stage's last run, as DVC detects them. `folders`: of code; `made`: all outputs."""
    if stage.is_callback:
        yield Reason("always", "it has neither deps nor outs")
        return
    if not any(out.hash_info for out in stage.outs) and not any(dep.hash_info for dep in stage.deps):
        yield Reason("never run", stage.addressing)
        return
    if stage.changed_stage():
        yield Reason("command", stage.addressing)
    if not stage.frozen:  # such as data of `dvc import`, whose source need not answer
        yield from _changed_deps(stage, folders, made)
    if not writes_code(stage):  # planning has written its outputs
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
                # The reasons of the upstream stage explain its missing outputs.
                if status == "deleted" and (is_record or path in made):
                    continue
                if not dep.hash_info:
                    yield Reason(kind, path, new="is new in dvc.yaml")
                    continue
                if is_record:
                    yield from _changed_code(dep)
                else:
                    yield Reason("made" if path in made else kind, path, new=status)


def _changed_code(dep: Dependency) -> Iterator[Reason]:
    cached = Path(dep.repo.cache.local.oid_to_path(dep.hash_info.value))
    old, new = code_in(cached), code_in(Path(dep.fs_path))
    reasons = list[Reason]()
    if old and new:
        reasons += (Reason("code", file, new=how) for file, how in file_changes(old, new).items())
        reasons += (Reason("library", *change) for change in library_changes(old, new))
    yield from reasons or [Reason("code", "its code or a library", new="changed")]


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
    """Describe the fault of an output; empty if it matches its record."""
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


def both_shown(old: Any, new: Any) -> tuple[str, str]:
    """Both values as YAML; long lists become their length, and long values are cut around the first difference."""
    whole = [as_yaml(value) for value in (old, new)]
    counted = [LONG_LIST.sub(lambda found: f"{found[0].count(',') + 1} values", text) for text in whole]
    texts, start = counted if counted[0] != counted[1] else whole, 0
    if max(map(len, texts)) > LONGEST_VALUE:
        same = next((i for i, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), min(map(len, texts)))
        start = max(0, same - LONGEST_VALUE // 3)
    end = start + LONGEST_VALUE
    old, new = (f"{'...' * (start > 0)}{text[start:end]}{'...' * (end < len(text))}" for text in texts)
    return old, new


def check_deps(repo: Repo, stages: Iterable[PipelineStage]) -> None:
    """Raise UserError if DVC cannot hash a dep, or if a dep that no stage makes is missing."""
    own_outs = {out.fs_path for stage in repo.index.stages for out in stage.outs}
    readers = {dep.fs_path: stage for stage in stages for dep in stage.deps if dep.protocol == "local"}
    for path, stage in readers.items():
        if not Path(path).exists() and own_outs.isdisjoint((path, *map(str, Path(path).parents))):
            raise UserError(
                f"{os.path.relpath(path, repo.root_dir)}: not found, but {stage.addressing} reads it: restore it "
                "(`git checkout` if git tracks it), or correct its path in dvc.yaml"
            )
    deps = readers.keys()
    faults = [line for path in sorted(deps - own_outs) for line in _unhashable(repo, path)]
    if faults:
        more = f" and {len(faults) - MAX_NAMED_CHANGES} more" if len(faults) > MAX_NAMED_CHANGES else ""
        raise UserError(
            f"DVC cannot read {', '.join(faults[:MAX_NAMED_CHANGES])}{more}; "
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
    """Write the files that the stage that records the code would write, so that DVC detects whose code has changed.

    Returns the folders of code, usually one. Raises UserError if a file is not Python.
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
    """True if a stage records the code of the others."""
    return isinstance(stage, PipelineStage) and WRITER in modules_of(stage.cmd)
