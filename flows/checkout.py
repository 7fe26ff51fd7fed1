"""The checkout that a deployment works in: brought up to its branches, and what came of a run committed to one.

It belongs to the deployment alone and is apart from where people work; a folder that a person made is refused. What a
killed run left in tracked files is undone: DVC's run-cache and the checkpoints, which git does not track, restore it.
Only results of experiments are committed, since nothing else holds a record of runs.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.repo import Repo
from ruamel.yaml import YAML

from flows.dvc_repo.cache import has_commit
from flows.dvc_repo.internals import own_environment
from flows.experiments.runs import RECORD
from flows.experiments.yaml_file import EXPERIMENTS
from flows.sweep.committed import git, give_identity
from stages.runtime.atomic import atomic_write
from stages.runtime.credentials import without_credentials
from stages.runtime.entry import STATE_DIR, UnavailableError, UserError, private_state_dir
from stages.runtime.section import PARAMS_FILE

IGNORED = ".gitignore"

WRITTEN_BY_DVC = ("dvc.lock", IGNORED)

MARK = ".git/parrotflow-checkout"
"""Tells a checkout of ours from a person's clone."""

MERGING = ".git/MERGE_HEAD"
"""Is there while a merge waits for its commit."""

NOBODYS = {STATE_DIR.name, "lost+found"}
"""In a folder before the first checkout: a deployment's lock, and what a new disk has."""

MERGED = f"{EXPERIMENTS}/*/*/** merge=ours\n{EXPERIMENTS}/*/*/{RECORD} merge=union\n{IGNORED} merge=union\n"
"""Of an experiment's results that two sides have changed: the lines of both records, and whole files of our own, which
the next sweep makes again from the record. Of what git ignores: the lines of both, DVC's and those of people."""


def bring_up_to_date(folder: Path, source: str, branch: str, results_branch: str) -> str:
    """Clone or update; afterwards HEAD is `results_branch` with `branch` merged into it. Returns HEAD's commit.

    Commits of earlier runs that were not pushed are kept. Raises UnavailableError where `source` does not answer,
    UserError where a branch is missing or cannot be merged.
    """
    _fetch(folder, source)
    if not has_commit(f"origin/{branch}", folder):
        raise UserError(f"{without_credentials(source)}: no branch `{branch}`; name one that exists")
    pushed = f"origin/{results_branch}" if has_commit(f"origin/{results_branch}", folder) else f"origin/{branch}"
    if has_commit(f"refs/heads/{results_branch}", folder):
        git(folder, "checkout", "--quiet", "--force", results_branch)
        merge(folder, pushed)
    else:
        git(folder, "checkout", "--quiet", "--force", "-B", results_branch, pushed)
    merge(folder, f"origin/{branch}")
    return head(folder)


def commit_what_was_broken_off(folder: Path) -> None:
    """Commit what a killed run has left of an experiment's results, to its branch, which is still checked out.

    Otherwise lines of a record that git tracks were undone, and files that it does not know were in the way of others.
    """
    if (folder / MERGING).exists():
        return  # what differs from HEAD is the other side's
    left = [path for path in _changed(folder) if path.startswith(f"{EXPERIMENTS}/") and path.count("/") > 2]
    if left:
        git(folder, "add", "--all", "--", *left)
        git(folder, "commit", "--quiet", "-m", "Results of a run that was broken off", "--", *left)


def bring_to_commit(folder: Path, source: str, commit: str) -> None:
    """Clone or update; afterwards HEAD is `commit`, on no branch.

    Raises UnavailableError where `source` does not answer, UserError where no branch of it has the commit.
    """
    _fetch(folder, source)
    if not has_commit(commit, folder):
        raise UserError(
            f"{without_credentials(source)}: no branch has the commit {commit[:12]}; push it there, or name another "
            "repository"
        )
    git(folder, "checkout", "--quiet", "--force", "--detach", commit)


def _fetch(folder: Path, source: str) -> None:
    if not (folder / ".git").exists():
        _begin(folder, source)
    if not (folder / MARK).exists():
        raise UserError(f"{folder} is a clone that no deployment made; delete it, or name another folder")
    # A killed git leaves its locks; no other process uses the checkout.
    for lock in (*(folder / ".git").glob("*.lock"), *(folder / ".git/refs").rglob("*.lock")):
        lock.unlink()
    give_identity(folder)
    commit_what_was_broken_off(folder)
    git(folder, "remote", "set-url", "origin", source)
    git(folder, "fetch", "--quiet", "--prune", "origin", error=UnavailableError)


def _begin(folder: Path, source: str) -> None:
    """Make an empty repository with our mark, in one step. Raises UserError where the folder has files of others."""
    folder.mkdir(parents=True, exist_ok=True)
    if others := sorted({path.name for path in folder.iterdir()} - NOBODYS):
        raise UserError(
            f"{folder} has files that no deployment made ({', '.join(others[:3])}); name a new or an empty folder"
        )
    made = private_state_dir(folder) / "new"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    git(made, "init", "--quiet")
    git(made, "remote", "add", "origin", source)
    (made / MARK).touch()
    (made / ".git").rename(folder / ".git")


def merge(folder: Path, other: str) -> None:
    """Merge a branch into HEAD. Raises UserError where a person has to.

    The files of results, dvc.lock among them, are taken whole from HEAD: entries of two sides merged as text would
    claim results that were never computed. What HEAD's results do not fit is computed or restored again. Records of
    experiments' runs are joined, and so is each `.gitignore`.
    """
    if _succeeds(folder, "merge-base", "--is-ancestor", other, "HEAD"):
        return
    _remove_what_is_in_the_way(folder, other)
    if _succeeds(folder, "merge-base", "--is-ancestor", "HEAD", other):
        git(folder, "merge", "--quiet", "--ff-only", other)
        return
    outs = uncached_outs(folder)
    results = [path for path in git(folder, "ls-files", "-z").split("\0") if is_result(path, outs)]
    atomic_write(folder / ".git/info/attributes", MERGED)
    ours = ("-c", "merge.ours.driver=true")
    try:
        git(folder, *ours, "merge", "--quiet", "--no-commit", "--no-ff", other)
    except UserError:
        # Over conflicts git waits for us; else it did not begin.
        if not (folder / MERGING).exists():
            raise
    unmerged = _unmerged(folder)
    if kept := [path for path in results if not path.endswith(IGNORED) or path in unmerged]:
        git(folder, "checkout", "--quiet", "HEAD", "--", *kept)
        unmerged = _unmerged(folder)
    # Deleted here and changed there.
    for path in [path for path in unmerged if is_result(path, outs)]:
        git(folder, "rm", "--quiet", "--force", "--", path)
        unmerged.remove(path)
    if unmerged:
        git(folder, "merge", "--abort")
        raise UserError(f"{other} cannot be merged: conflicts in {', '.join(unmerged[:5])}; merge them by hand once")
    git(folder, "commit", "--quiet", "-m", f"Take {other} in")


def _unmerged(folder: Path) -> list[str]:
    return [path for path in git(folder, "diff", "--name-only", "-z", "--diff-filter=U").split("\0") if path]


def _remove_what_is_in_the_way(folder: Path, other: str) -> None:
    """Remove files that git does not know here and `other` has, such as a report that a failed run has left.

    git overwrites none of them, so they would stop this merge in every later run.
    """
    theirs = set(git(folder, "ls-tree", "-r", "-z", "--name-only", other).split("\0")) - {""}
    for path in theirs.intersection(git(folder, "ls-files", "-z", "--others", "--exclude-standard").split("\0")):
        (folder / path).unlink()


def commit_results(folder: Path, message: str, others: Sequence[str] = ()) -> str | None:
    """Commit what a run changed; the commit, or None where nothing changed. `others` are folders of results besides.

    Raises UserError if other files changed than results.
    """
    # Overrides are written to params.yaml.
    changed, results = _changed(folder), (*uncached_outs(folder), str(PARAMS_FILE), *others)
    foreign = [path for path in changed if not is_result(path, results)]
    if foreign:
        raise UserError(
            f"{folder}: {', '.join(foreign[:5])} changed during the run and are not results; nothing committed"
        )
    if not changed:
        return None
    git(folder, "add", "--all", "--", *changed)
    git(folder, "commit", "--quiet", "-m", message)
    return head(folder)


def push_commits(folder: Path, results_branch: str) -> None:
    """Push the branch of results, never by force; where it has moved on meanwhile, after merging.

    Raises UnavailableError where the remote does not answer; the commits stay in the checkout.
    """
    remote = f"origin/{results_branch}"
    git(folder, "fetch", "--quiet", "--prune", "origin", error=UnavailableError)
    if has_commit(remote, folder):
        if _succeeds(folder, "merge-base", "--is-ancestor", "HEAD", remote):
            return
        merge(folder, remote)
    elif not git(folder, "rev-list", "--max-count=1", "HEAD", "--not", "--remotes=origin"):
        return  # no commit that the remote lacks
    git(folder, "push", "--quiet", "origin", f"HEAD:refs/heads/{results_branch}", error=UnavailableError)


def uncached_outs(folder: Path) -> tuple[str, ...]:
    """The outputs, metrics, plots and artifacts of dvc.yaml that DVC does not cache, so that git tracks them.

    Raises UserError where dvc.yaml cannot be read.
    """
    try:
        with Repo(str(folder)) as repo:
            outs = [Path(out.fs_path).relative_to(repo.root_dir) for out in repo.index.outs if not out.use_cache]
    except (DvcException, ValueError) as error:
        raise UserError(f"{folder}: {error}") from None
    top_level = YAML(typ="safe").load(folder / "dvc.yaml") or {}
    declared = [entry for kind in ("metrics", "plots") for entry in top_level.get(kind) or ()]
    paths = [next(iter(entry)) if isinstance(entry, dict) else entry for entry in declared]
    artifacts = [str(artifact["path"]) for artifact in (top_level.get("artifacts") or {}).values()]
    return (*(out.as_posix() for out in outs), *paths, *artifacts)


def left_out_by_git(folder: Path, message: str) -> list[str]:
    """What to do about the inputs that a failure's message names and that no checkout has, a line each."""
    with Repo(str(folder)) as repo:
        made = {out.fs_path for out in repo.index.outs}
        read = {dep.fs_path for stage in repo.index.stages for dep in stage.deps if dep.protocol == "local"}
        inside = (Path(path) for path in read - made if Path(path).is_relative_to(repo.root_dir))
        names = sorted(path.relative_to(repo.root_dir).as_posix() for path in inside)
    ignored = [name for name in names if _succeeds(folder, "check-ignore", "--quiet", "--", f"{name}/any")]
    tracked = git(folder, "ls-files", "-z").split("\0")
    return [
        f"a checkout has no file of `{name}`, since git ignores what lies there: track it with `git add -f`, or name a "
        "folder outside the project or a URL instead"
        for name in ignored
        if name in message and not any(path.startswith(f"{name}/") and "/." not in path for path in tracked)
    ]


def is_result(path: str, results: Sequence[str]) -> bool:
    """Whether a run may have written a tracked file."""
    return path.endswith(WRITTEN_BY_DVC) or any(path == result or path.startswith(f"{result}/") for result in results)


def require_branch_name(name: str) -> None:
    """Raise UserError where git takes no branch of this name, such as one with a space."""
    if not _succeeds(Path(), "check-ref-format", f"refs/heads/{name}"):
        raise UserError(f"`{name}`: git takes no branch of this name; rename it, or the file that it is named after")


def head(folder: Path) -> str:
    """The commit that is checked out."""
    return git(folder, "rev-parse", "HEAD")


def _changed(folder: Path) -> list[str]:
    entries = git(folder, "status", "--porcelain", "--untracked-files=all", "-z", "--no-renames").split("\0")
    return [entry[3:] for entry in entries if entry]


def _succeeds(folder: Path, *arguments: str) -> bool:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=folder, env=own_environment(), capture_output=True, check=False)
    return done.returncode == 0
