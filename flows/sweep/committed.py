"""Git; and that what the stages of a cell read is in a commit: their code, and files, which git must not ignore."""

import os
import shlex
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from backports import tarfile
from dvc.repo import Repo
from dvc.stage import Stage

from flows.dvc_repo.internals import open_repo, own_environment
from flows.plan.changes import check_deps, code_folders, writes_code
from stages.runtime.code import PACKAGES
from stages.runtime.entry import UserError
from stages.runtime.section import PARAMS_FILE
from stages.runtime.stage_code import REQUIREMENTS_LOCK, StageCode, code_of, code_path, stage_codes, stage_modules

SUBMODULE = "160000"
"""Its mode in git's index: of another repository in this one git has the commit and no file."""


def git(folder: Path, *arguments: str, check: bool = True, error: type[UserError] = UserError) -> str:
    """Run git; what it prints. Raises `error` where it fails; without `check` that gives an empty text."""
    command = ["git", "-c", "core.quotePath=off", *arguments]  # else names that are not ASCII are no paths
    done = subprocess.run(command, cwd=folder, env=own_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        if not check:
            return ""
        name = next(word for word in arguments if word.isalpha())
        raise error(f"git {name}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip("\n")


def give_identity(folder: Path) -> None:
    """Let commits be made in a repository of ours where this machine has no identity for git."""
    if not git(folder, "config", "user.email", check=False):
        git(folder, "config", "user.name", "parrotflow")
        git(folder, "config", "user.email", "parrotflow@localhost")


def unpack_commit(folder: Path, commit: str, names: Iterable[str], into: Path) -> None:
    """Write what a folder has under some names at a commit; names that it does not have are left out."""
    if there := git(folder, "ls-tree", "--name-only", commit, "--", *names).splitlines():
        archive = into / ".tar"
        git(folder, "archive", "--format=tar", f"--output={archive}", commit, "--", *there)
        with tarfile.open(archive) as tar:
            tar.extractall(into, filter="tar")
        archive.unlink()


def require_committed(targets: Iterable[str]) -> None:
    """Raise UserError where the target stages, or those before them, read files that git ignores.

    What other stages make is no such file, nor is data that DVC keeps (`dvc add`), nor is code, which
    `uncommitted_code` compares. What DVC cannot hash is refused too.
    """
    root = Path(git(Path(), "rev-parse", "--show-toplevel"))
    entries = git(root, "ls-files", "--stage", "-z").split("\0")
    tracked = {root / entry.partition("\t")[2] for entry in entries if entry and not entry.startswith(SUBMODULE)}
    ignored: dict[str, list[str]] = {}
    with open_repo() as repo:
        found = {stage for target in targets for stage in repo.stage.collect(target, with_deps=True)}
        stages = {stage for stage in found if not writes_code(stage)}
        check_deps(repo, stages)
        made = {Path(out.fs_path) for stage in repo.index.stages for out in stage.outs}
        local = {Path(dep.fs_path) for stage in stages for dep in stage.deps if dep.protocol == "local"}
        known = tracked | made
        for path in sorted(local - {PARAMS_FILE.absolute()}):
            if path.is_relative_to(root) and not is_below(path, made):
                files = [os.path.relpath(file) for file in _files(repo, path) if not is_below(file, known)]
                ignored |= {os.path.relpath(path): files} if files else {}
    if ignored:
        files = [file for below in ignored.values() for file in below]
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


def is_below(path: Path, folders: set[Path]) -> bool:
    """Whether a path is one of these, or within one of them."""
    return path in folders or not folders.isdisjoint(path.parents)


@cache
def codes_at(commit: str, root: Path, params: str) -> Mapping[Path, StageCode]:
    """The code of every stage below a folder at a commit, by `code_path`.

    `params` is what params.yaml says, of which the packages whose code is the corpus count. Raises UserError where a
    file is not Python.
    """
    with TemporaryDirectory() as folder:
        unpack_commit(root, commit, [*PACKAGES, str(REQUIREMENTS_LOCK)], Path(folder))
        Path(folder, PARAMS_FILE).write_text(params, encoding="utf-8")
        try:
            return stage_codes(Path(folder))
        except UserError as error:
            raise UserError(f"commit {commit[:12]}: {error}") from None


def uncommitted_code(stages: Collection[Stage]) -> list[str]:
    """What of the code that stages use is not in HEAD. Raises UserError where that code is not Python."""
    head, found = git(Path(), "rev-parse", "HEAD"), []
    for folder in code_folders(stages):
        params = folder.root / PARAMS_FILE
        committed = codes_at(head, folder.root, params.read_text(encoding="utf-8") if params.is_file() else "")
        modules = folder.read_by(stages, {code_path(module): module for module in stage_modules(folder.root)})
        now = {path: code_of(module, folder.root) for path, module in modules.items()}
        found += folder.changed_names(folder.read_by(stages, committed), now)
    return found


def changed_code_since(commit: str, stages: Collection[Stage], sources: str) -> list[str]:
    """What of the code that stages use differs between a commit and HEAD."""
    found = []
    for folder in code_folders(stages):
        now = codes_at(git(Path(), "rev-parse", "HEAD"), folder.root, sources)
        try:
            before = codes_at(commit, folder.root, sources)
        except UserError:  # its cells could not compute anything
            before = {}
        found += folder.changed_names(folder.read_by(stages, before), folder.read_by(stages, now))
    return found


def sources_of(params: Mapping[str, Any]) -> str:
    """The text of a params.yaml that names no more than the sources of documents."""
    sections = {name: section for name, section in params.items() if isinstance(section, dict) and "sources" in section}
    return yaml.safe_dump({name: {"sources": section["sources"]} for name, section in sections.items()})
