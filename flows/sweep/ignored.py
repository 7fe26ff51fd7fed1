"""What the stages of a cell read and git does not have, such as the files in corpus/, which git ignores.

A commit does not bring them to a clone, so they are copied into it, and a cell is current only while they are as they
were.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dvc.repo import Repo

from flows.dvc_repo.internals import open_repo
from flows.plan.unhashable import check_deps
from flows.sweep.git import git
from stages.runtime.atomic import atomic_write
from stages.runtime.section import PARAMS_FILE

SUBMODULE = "160000"
"""Its mode in git's index: of another repository in this one git has the commit and no file."""

COPIED = Path(".git/parrotflow-ignored.json")
"""In a clone: the hashes of what was copied; empty texts while it is being copied."""


@dataclass(frozen=True)
class IgnoredInputs:
    """Paths are relative to git's root."""

    root: Path
    files: tuple[Path, ...]
    hashes: dict[str, str]
    """Of each path of dvc.yaml that has such files: DVC's hash of all that it holds."""

    def copy_into(self, clone: Path) -> None:
        """Make these inputs in a clone as they are here, where they are not yet. No cell works on the user's files."""
        stamp = clone / COPIED
        before = json.loads(stamp.read_text(encoding="utf-8")) if stamp.is_file() else {}
        if before == self.hashes:
            return
        concerned = sorted({*before, *self.hashes})
        atomic_write(stamp, json.dumps(dict.fromkeys(concerned, "")))
        for path in concerned:
            if (clone / path).is_file():
                (clone / path).unlink()
            shutil.rmtree(clone / path, ignore_errors=True)
        git(clone, "checkout", "--quiet", "--force", "HEAD")
        for file in self.files:
            (clone / file).parent.mkdir(parents=True, exist_ok=True)
            self._copy(self.root / file, clone / file)
        atomic_write(stamp, json.dumps(self.hashes))

    def _copy(self, source: Path, target: Path) -> None:
        """A link stays one, since stages tell links from files: within its input as it is, else to the same file."""
        if not source.is_symlink():
            shutil.copy2(source, target)
            return
        inputs = [self.root / path for path in self.hashes]
        leads_to = Path(os.path.realpath(source))
        stays = any(is_below(source, [path]) and is_below(leads_to, [path]) for path in inputs)
        to = source.readlink()
        target.symlink_to(to if stays and not to.is_absolute() else leads_to)


def ignored_inputs(targets: Iterable[str]) -> IgnoredInputs:
    """Those of the target stages and the stages before them, without what other stages make.

    Raises UserError that names files which DVC cannot hash.
    """
    root = Path(git(Path(), "rev-parse", "--show-toplevel"))
    entries = git(root, "ls-files", "--stage", "-z").split("\0")
    tracked = {root / entry.partition("\t")[2] for entry in entries if entry and not entry.startswith(SUBMODULE)}
    files: dict[Path, None] = {}
    hashes: dict[str, str] = {}
    with open_repo() as repo:
        stages = {stage for target in targets for stage in repo.stage.collect(target, with_deps=True)}
        check_deps(repo, stages)
        made = {Path(out.fs_path) for stage in repo.index.stages for out in stage.outs}
        local = {Path(dep.fs_path): dep for stage in stages for dep in stage.deps if dep.protocol == "local"}
        for path, dep in sorted(local.items()):
            if path == PARAMS_FILE.absolute() or not path.is_relative_to(root) or is_below(path, made):
                continue
            # What git has as a link leads from the clone to the same place.
            found = [file for file in _files(repo, path) if not is_below(file, tracked) and not is_below(file, made)]
            if found:
                files |= dict.fromkeys(file.relative_to(root) for file in found)
                hashes[os.path.relpath(path, root)] = str(dep.get_hash().value)
    return IgnoredInputs(root, tuple(files), hashes)


def _files(repo: Repo, path: Path) -> Iterator[Path]:
    """The file, or those in the folder, without what .dvcignore lists and what Python has compiled."""
    if path.is_file():
        yield path
    # A repository of DVC's in the folder is no reason for a stage not to read it.
    for folder, _, names in repo.dvcignore.walk(repo.fs, str(path), ignore_subrepos=False):
        if "__pycache__" not in Path(folder).parts:
            yield from (Path(folder, name) for name in sorted(names))


def is_below(path: Path, folders: Iterable[Path]) -> bool:
    """Whether a path is one of these, or within one of them."""
    known = folders if isinstance(folders, set) else {*folders}
    return path in known or not known.isdisjoint(path.parents)
