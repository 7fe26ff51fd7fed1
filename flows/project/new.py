"""`parrotflow new FOLDER`: a project of one's own, from a clone or from an installed package, and its later versions.

The project's git branch `parrotflow` holds what comes from here, a commit for each version. The work is done on `main`,
which begins there. So a later version is one more commit on that branch, and git merges it.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import chdir
from importlib.metadata import version
from pathlib import Path

from flows.project.compose import composed_with_dial
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import UserError
from stages.runtime.section import PARAMS_FILE

BRANCH = "parrotflow"
"""Of the project: what comes from here, unchanged."""

HERE = Path(__file__).parent

PACKAGES = ("flows", "stages")

IDENTITY = ("-c", "user.name=parrotflow", "-c", "user.email=parrotflow@localhost")
"""Who commits it: not the user, who may not have told git a name yet."""

README = """\
# {name}

A causal language model, trained from scratch by parrotflow.

```
make run       # corpus -> tokenizer -> tokens -> model -> evaluation -> published/
make test
```

It learns from what `collect.sources` in `params.yaml` names. Made without `corpus=folder`, that is the source code of
pinned Python packages, and the first run needs nothing of yours. For your own documents put them below `corpus/`, then:

```
source .venv/bin/activate
parrotflow params corpus=folder    # prose, notes and code in any language
parrotflow why                     # what would run, and why
make run
parrotflow sweep --new rates       # a first experiment, to be filled in
```

A later version of parrotflow comes by `parrotflow new . --update` of that version: a commit on the branch `parrotflow`,
whose difference is shown before git merges it.
"""

TEST = '''\
"""What must hold before anything is computed: params.yaml is complete, and every stage of dvc.yaml can be planned."""

import subprocess
import sys


def test_the_pipeline_can_be_planned() -> None:
    done = subprocess.run([sys.executable, "-m", "flows.cli", "why"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
'''


def new_project(folder: Path, words: Sequence[str]) -> list[str]:
    """Make a project with the presets and values that `parrotflow params` takes; lines for the user.

    Raises UserError where the folder is not empty, and where params.yaml would be refused; then nothing is left.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty; give a new folder, or --update to bring a project up to date")
    there = folder.exists()
    try:
        write_files(folder)
        git(folder, "init", "--quiet", "--initial-branch", BRANCH)
        commit(folder, f"parrotflow {version('parrotflow')}")
        git(folder, "checkout", "--quiet", "-b", "main")
        write_own(folder, words)
        commit(folder, "Begin a project")
    except BaseException:
        for path in [*folder.iterdir()] if there else [folder]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        raise
    return [f"{folder} is a project of its own, with its first commit", f"next: cd {folder} && make run"]


def commit(folder: Path, message: str) -> None:
    """Commit all files of a folder."""
    git(folder, "add", "--all")
    git(folder, *IDENTITY, "commit", "--quiet", "--no-verify", "--message", message)


def write_files(folder: Path) -> None:
    """Write the files that every project begins with: the packages, and those of `project_files.txt`."""
    root = HERE.parents[1]
    beside = HERE / "files" if (HERE / "files").is_dir() else root
    not_copied = shutil.ignore_patterns("__pycache__", "*.pyc")

    def not_of_a_package(at: str, names: list[str]) -> set[str]:
        return {*not_copied(at, names), *(["files"] if Path(at) == HERE else [])}

    for package in PACKAGES:
        shutil.copytree(root / package, folder / package, ignore=not_of_a_package)
    for name in (HERE / "project_files.txt").read_text(encoding="utf-8").split():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (beside / name).is_dir():
            shutil.copytree(beside / name, target, dirs_exist_ok=True, ignore=not_copied)
        else:
            shutil.copyfile(beside / name, target)


def write_own(folder: Path, words: Sequence[str]) -> None:
    """Write what belongs to the user from the first day on: README, a test, params.yaml and a first document."""
    name = folder.resolve().name
    atomic_write(folder / "README.md", README.format(name=name))
    (folder / "tests").mkdir()
    atomic_write(folder / "tests/test_project.py", TEST)
    with chdir(folder):
        atomic_write(PARAMS_FILE, composed_with_dial(words)[0])


def update_project(folder: Path) -> tuple[str, str]:
    """Commit this version's files to the project's branch; the commits before and after, equal if nothing differs.

    Raises UserError where the folder is no such project, is not on a branch of the user's, or has changes that are not
    committed.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; without --update a project is made there")
    if not git(folder, "branch", "--list", BRANCH):
        raise UserError(f"{folder} has no branch `{BRANCH}`, so it was not made by `parrotflow new`; merge by hand")
    if git(folder, "status", "--porcelain"):
        raise UserError(f"{folder} has changes that are not committed; commit them, then update again")
    if git(folder, "branch", "--show-current") == BRANCH:
        # git would move the branch, and leave the files as they are: a later commit of them takes the version back.
        raise UserError(f"{folder} has the branch `{BRANCH}` checked out; check out your own, then update again")
    before = git(folder, "rev-parse", BRANCH)
    with tempfile.TemporaryDirectory() as made:
        files = Path(made) / "files"
        write_files(files)
        # An index of its own: the user's files and branch stay as they are.
        index = {"GIT_INDEX_FILE": f"{made}/index", "GIT_WORK_TREE": str(files)}
        index["GIT_DIR"] = git(folder, "rev-parse", "--absolute-git-dir")
        git(files, "add", "--all", ".", **index)
        tree = git(files, "write-tree", **index)
    if tree == git(folder, "rev-parse", f"{before}^{{tree}}"):
        return before, before
    message = f"parrotflow {version('parrotflow')}"
    after = git(folder, *IDENTITY, "commit-tree", tree, "-p", before, "-m", message)
    return before, after


def git(folder: Path, *arguments: str, **variables: str) -> str:
    """Run git; what it prints. Raises UserError where it fails."""
    # Those of a git hook would lead to another repository.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=own | variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UserError(f"git in {folder}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def difference(folder: Path, before: str, after: str) -> str:
    """What the new version changes, file by file, and how to see all of it."""
    return f"{git(folder, 'diff', '--stat', before, after)}\nall of it: git diff {before[:12]} {after[:12]}"


def merge(folder: Path, before: str, after: str) -> str:
    """Merge the new version into the branch that is checked out; what git says. Raises UserError on a conflict."""
    git(folder, "update-ref", f"refs/heads/{BRANCH}", after, before)
    try:
        return git(folder, *IDENTITY, "merge", "--no-edit", BRANCH)
    except UserError as error:
        raise UserError(
            f"{error}\nyour edits and the new version touch the same lines: in {folder} edit the files that "
            "`git status` names and commit, or `git merge --abort`"
        ) from None
