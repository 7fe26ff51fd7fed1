"""What the stages of a cell read and git ignores, such as the user's files in corpus/: a clone does not have it."""

import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from dvc.repo import Repo

from flows.dvc_repo.internals import open_repo
from flows.plan.unhashable import check_deps
from flows.sweep.git import git
from stages.runtime.entry import UserError
from stages.runtime.section import PARAMS_FILE

SUBMODULE = "160000"
"""Its mode in git's index: of another repository in this one git has the commit and no file."""


def require_committed(targets: Iterable[str]) -> None:
    """Raise UserError where the target stages, or those before them, read files that git ignores.

    What other stages make is no such file, nor is data that DVC keeps (`dvc add`). What DVC cannot hash is refused too.
    """
    root = Path(git(Path(), "rev-parse", "--show-toplevel"))
    entries = git(root, "ls-files", "--stage", "-z").split("\0")
    tracked = {root / entry.partition("\t")[2] for entry in entries if entry and not entry.startswith(SUBMODULE)}
    ignored: dict[str, list[str]] = {}
    with open_repo() as repo:
        stages = {stage for target in targets for stage in repo.stage.collect(target, with_deps=True)}
        check_deps(repo, stages)
        made = {Path(out.fs_path) for stage in repo.index.stages for out in stage.outs}
        local = {Path(dep.fs_path) for stage in stages for dep in stage.deps if dep.protocol == "local"}
        known = tracked | made
        for path in sorted(local - {PARAMS_FILE.absolute()}):
            if path.is_relative_to(root) and not is_below(path, made):
                found = [os.path.relpath(file) for file in _files(repo, path) if not is_below(file, known)]
                ignored |= {os.path.relpath(path): found} if found else {}
    if ignored:
        files = [file for found in ignored.values() for file in found]
        more = f" and {len(files) - 5} more" if len(files) > 5 else ""
        raise UserError(
            f"the cells read {', '.join(files[:5])}{more}, which git ignores; a cell has only what is committed: "
            f"`git add -f {shlex.join(ignored)}` and commit, or keep large data by `dvc add`"
        )


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
