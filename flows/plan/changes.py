"""Why a stage would run: what has changed since it ran last; and the deps that DVC could not even hash.

A stage depends on one file of the folder `code` (`stages.runtime.stage_code`). As soon as any code has changed, the
plan would otherwise say of every stage that it may run. So it knows what the DVC stage that records the code would
write now, without running it. A dvc.yaml without such a stage is planned as any other.
"""

import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import md5
from pathlib import Path
from typing import Any, Literal, TypeVar

from dvc.dependency import Dependency
from dvc.dependency.param import ParamsDependency
from dvc.output import Output
from dvc.repo import Repo
from dvc.stage import PipelineStage, Stage
from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.meta import Meta

from stages.runtime.entry import UserError
from stages.runtime.section import differences
from stages.runtime.stage_code import (
    FOLDER,
    REQUIREMENTS_LOCK,
    WRITER,
    StageCode,
    code_path,
    file_changes,
    library_changes,
    modules_of,
    read_stage_code,
    stage_codes,
    stage_modules,
)

ReasonKind = Literal[
    "parameter", "library", "code", "data", "upstream", "command", "output", "never run", "always", "asked"
]

FIXED_TEXT = {"command": "its command changed", "never run": "never run", "asked": "--force"}

NAMED_AT_MOST = 10

LONGEST_VALUE = 60
"""Letters of a parameter's value in the line that says why a stage runs."""

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
                return f"{self.what} {_change(self.old, self.new)}"
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


def _change(old: Any, new: Any) -> str:
    """Both values as YAML writes them. Long ones are cut so that what differs is shown."""
    texts = [_as_yaml(old), _as_yaml(new)]
    start = 0
    if max(map(len, texts)) > LONGEST_VALUE:
        same = next((i for i, (one, two) in enumerate(zip(*texts, strict=False)) if one != two), min(map(len, texts)))
        start = max(0, same - LONGEST_VALUE // 3)
    return " → ".join(_cut(text, start) for text in texts)


def _as_yaml(value: Any) -> str:
    if value is None:
        return "nothing"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)


def _cut(text: str, start: int) -> str:
    shown = text[start : start + LONGEST_VALUE]
    return ("..." if start else "") + shown + ("..." if start + LONGEST_VALUE < len(text) else "")


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


Found = TypeVar("Found")


class ExpectedDependency(Dependency):  # type: ignore[misc]
    """A file whose content is known before it is written."""

    expected: HashInfo
    exists = True

    def get_hash(self) -> HashInfo:
        """That of the expected content."""
        return self.expected

    def save(self) -> None:
        """Take the expected content for the one that is there."""
        self.hash_info, self.meta = self.expected, Meta()


def expect_content(dep: Dependency, content: bytes) -> None:
    """Let a dependency answer as if its file had this content already. Nothing is written."""
    dep.__class__ = ExpectedDependency
    dep.expected = HashInfo("md5", md5(content, usedforsecurity=False).hexdigest())


class CodeFolder:
    """The folder that one stage writes, with a file for each other stage."""

    def __init__(self, writer: Stage) -> None:
        self.writer = writer
        self.root = Path(writer.wdir)
        self.path = self.root / FOLDER
        self.is_stale = False
        """Whether its writer is to run: then the files are not what they will be."""

    @cached_property
    def texts(self) -> dict[Path, bytes]:
        """File -> what its writer would write now. Raises UserError where code is not Python."""
        return {self.root / path: code.text.encode() for path, code in stage_codes(self.root).items()}

    def files_of(self, stage: Stage) -> list[Dependency]:
        """Of a stage's dependencies those in the folder, and those that hold it."""
        paths = ((dep, Path(dep.fs_path)) for dep in stage.deps if dep.protocol == "local")
        return [dep for dep, path in paths if path.is_relative_to(self.path) or self.path.is_relative_to(path)]

    def read_by(self, stages: Iterable[Stage], files: Mapping[Path, Found]) -> dict[Path, Found]:
        """Of files, relative to the root, those that stages depend on."""
        read = {Path(dep.fs_path) for stage in stages for dep in self.files_of(stage)}
        whole = not read.isdisjoint((self.path, *self.path.parents))
        return {path: value for path, value in files.items() if whole or self.root / path in read}

    def changed_names(self, old: Mapping[Path, StageCode], new: Mapping[Path, StageCode]) -> list[str]:
        """The files of code and the libraries that differ. Of a stage that one side lacks its command alone."""
        files: set[str] = set()
        libraries: set[str] = set()
        for path in old.keys() | new.keys():
            before, now = old.get(path), new.get(path)
            if before and now:
                files |= file_changes(before, now).keys()
                libraries |= {name for name, *_ in library_changes(before, now)}
            else:
                files.add(f"stages/{path.stem.replace('.', '/')}/__main__.py")
        paths = sorted(os.path.relpath(self.root / file) for file in files)
        return [*paths, *(f"{name} in {REQUIREMENTS_LOCK}" for name in sorted(libraries, key=str.lower))]

    def expect_in(self, stage: Stage) -> bool:
        """Let DVC take the files as they will be; whether a stage reads nothing else of the folder."""
        files = self.files_of(stage)
        for dep in files:
            if (text := self.texts.get(Path(dep.fs_path))) is not None:
                expect_content(dep, text)
        return all(Path(dep.fs_path) in self.texts for dep in files)

    def changes(self, dep: Dependency) -> tuple[StageCode, StageCode] | None:
        """What a file held when its stage ran last, and now. None where DVC's cache does not have the old one."""
        path, old = Path(dep.fs_path), Path(dep.repo.cache.local.oid_to_path(dep.hash_info.value))
        new = self.texts.get(path) if self.is_stale else path.read_bytes() if path.is_file() else None
        found = read_stage_code(old.read_bytes()) if old.is_file() else None, read_stage_code(new or b"")
        return None if found[0] is None or found[1] is None else (found[0], found[1])


def code_folders(stages: Iterable[Stage]) -> list[CodeFolder]:
    """Those that some stages write; mostly one, in a foreign project none."""
    return [CodeFolder(stage) for stage in stages if writes_code(stage)]


def writes_code(stage: Stage) -> bool:
    """Whether a stage is the one that records the code of the others."""
    return isinstance(stage, PipelineStage) and WRITER in modules_of(stage.cmd) and not stage.frozen


def unnoticed_code(name: str, command: object, deps: Iterable[str], root: Path = Path()) -> str:
    """What to do about a stage of ours that does not depend on its file of code; empty where it does."""
    known = stage_modules(root)
    paths = [code_path(module).as_posix() for module in modules_of(command) if module in known]
    path = next((path for path in paths if path not in deps), None)
    return (
        f"{name}: {path} is not among its deps, so a change of its code goes unnoticed: add it in dvc.yaml"
        if path
        else ""
    )
