"""The code of the stages in a plan: what the DVC stage that records it would write now, without running it.

A stage depends on one file of the folder `code` (`stages.runtime.stage_code`). As soon as any code has changed, the
plan would otherwise say of every stage that it may run. A dvc.yaml without such a stage is planned as any other.
"""

import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from hashlib import md5
from pathlib import Path
from typing import TypeVar

from dvc.dependency import Dependency
from dvc.stage import PipelineStage, Stage
from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.meta import Meta

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


def expect_code(stage: Stage) -> None:
    """Let DVC take a stage's files of code as they will be."""
    for folder in code_folders(stage.repo.index.stages):
        folder.expect_in(stage)


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
