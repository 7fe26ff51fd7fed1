"""The checkout of a deployment: a branch of the source with the results of the last run.

Only the deployment uses it; a folder that a user made is refused. The results branch is generated, never merged: each
commit has the source's tree with the run's results, and its parents are the previous results and the commit that was
run. Changes that a killed run left in tracked files are discarded; DVC's run-cache and the checkpoints, which git does
not track, restore them. Prefect retries if a remote does not answer.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.repo import Repo
from prefect import Task
from prefect.cache_policies import NO_CACHE

from flows.dvc_repo import check_out, git, give_identity, has_commit
from stages.runtime.credentials import without_credentials
from stages.runtime.errors import STATE_DIR, UnavailableError, UserError, private_state_dir
from stages.runtime.section import PARAMS_FILE, read_yaml

SOURCE_VARIABLE = "PARROTFLOW_SOURCE"
"""The address or path of the git repository that deployments run."""

CHECKOUT_VARIABLE = "PARROTFLOW_CHECKOUT"
"""The folder in which deployments keep their checkout between runs; the default is `.parrotflow/checkout`."""

RETRY_DELAYS_SECONDS = [10.0, 60.0, 300.0]
"""The delay before each retry after git's or DVC's remote did not answer."""

CHECKOUT_MARK = ".git/parrotflow-checkout"
"""Marks a checkout that a deployment made; a user's clone does not have it."""

PRESENT_BEFORE = {STATE_DIR.name, "lost+found"}
"""Files allowed in a folder before its first checkout: a deployment's lock, and the `lost+found` of a new disk."""


def bring_up_to_date(folder: Path, source: str, branch: str, results_branch: str) -> None:
    """Clone or update; afterwards HEAD is `branch`, with the results of `results_branch`.

    Nothing is merged. The next run computes or restores results that do not match `branch`.

    Raises UnavailableError if `source` does not answer, UserError if it has no such branch.
    """
    _fetch(folder, source)
    if not has_commit(f"origin/{branch}", folder):
        raise UserError(f"{without_credentials(source)}: no branch `{branch}`; name an existing branch")
    check_out(folder, f"origin/{branch}")
    if last := last_results(folder, results_branch):
        paths = git(folder, "ls-tree", "-r", "-z", "--name-only", last).split("\0")
        outs = uncached_outs(folder)
        if results := [path for path in paths if is_result(path, outs) and not path.endswith(".gitignore")]:
            git(folder, "checkout", "--quiet", last, "--", *results)


def last_results(folder: Path, results_branch: str) -> str:
    """The newest commit of results: the pushed one, or a local one on top of it; empty if there is none."""
    here, pushed = f"refs/heads/{results_branch}", f"origin/{results_branch}"
    if not has_commit(here, folder):
        return pushed if has_commit(pushed, folder) else ""
    continues = not has_commit(pushed, folder) or not git(folder, "rev-list", "--max-count=1", pushed, "--not", here)
    return here if continues else pushed


def bring_to_commit(folder: Path, source: str, commit: str) -> None:
    """Clone or update; afterwards HEAD is `commit`, on no branch.

    Raises UnavailableError if `source` does not answer, UserError if none of its branches has the commit.
    """
    _fetch(folder, source)
    if not has_commit(commit, folder):
        raise UserError(
            f"{without_credentials(source)}: no branch has the commit {commit[:12]}; push it there, or name another "
            "repository"
        )
    check_out(folder, commit)


def _fetch(folder: Path, source: str) -> None:
    if not (folder / ".git").exists():
        _begin(folder, source)
    if not (folder / CHECKOUT_MARK).exists():
        raise UserError(f"{folder} is a clone that was not made by a deployment; delete it, or name another folder")
    # Remove locks of a killed git; no other process uses the checkout.
    for lock in (*(folder / ".git").glob("*.lock"), *(folder / ".git/refs").rglob("*.lock")):
        lock.unlink()
    give_identity(folder)
    git(folder, "remote", "set-url", "origin", source)
    git(folder, "fetch", "--quiet", "--prune", "origin", error=UnavailableError)


def _begin(folder: Path, source: str) -> None:
    """Create an empty repository with our mark, atomically. Raises UserError if the folder has other files."""
    folder.mkdir(parents=True, exist_ok=True)
    if others := sorted({path.name for path in folder.iterdir()} - PRESENT_BEFORE):
        raise UserError(f"{folder} has files of its own ({', '.join(others[:3])}); name a new or empty folder")
    made = private_state_dir(folder) / "new"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    git(made, "init", "--quiet")
    git(made, "remote", "add", "origin", source)
    (made / CHECKOUT_MARK).touch()
    (made / ".git").rename(folder / ".git")


def commit_results(folder: Path, message: str, results_branch: str) -> str | None:
    """Commit the tree with the run's changes on top of the last results; None if they have the same tree.

    Raises UserError if files other than results changed.
    """
    changed = git(folder, "status", "--porcelain", "--untracked-files=all", "-z", "--no-renames").split("\0")
    results = (*uncached_outs(folder), str(PARAMS_FILE))  # overrides are written to params.yaml
    if foreign := [path for entry in changed if entry and not is_result(path := entry[3:], results)]:
        raise UserError(
            f"{folder}: {', '.join(foreign[:5])} changed during the run but are not results, so nothing was committed"
        )
    git(folder, "add", "--all", "--", ".")
    tree, last = git(folder, "write-tree"), last_results(folder, results_branch)
    if tree == git(folder, "rev-parse", f"{last or 'HEAD'}^{{tree}}"):
        return None
    parents = [word for parent in (last, "HEAD") if parent for word in ("-p", git(folder, "rev-parse", parent))]
    commit = git(folder, "commit-tree", tree, *parents, "-m", message)
    git(folder, "update-ref", f"refs/heads/{results_branch}", commit)
    return commit


def push_commits(folder: Path, results_branch: str) -> None:
    """Push the results branch, never by force, if it continues the pushed one.

    Raises UnavailableError if the push fails. The next run then pushes the commits, unless another machine has pushed
    the branch meanwhile; then it computes its results on top of those.
    """
    ref = f"refs/heads/{results_branch}"
    if last_results(folder, results_branch) == ref:
        git(folder, "push", "--quiet", "origin", f"{ref}:{ref}", error=UnavailableError)


def uncached_outs(folder: Path) -> tuple[str, ...]:
    """The outputs, metrics, plots and artifacts of dvc.yaml that git tracks because DVC does not cache them.

    Raises UserError if dvc.yaml cannot be read.
    """
    try:
        with Repo(str(folder)) as repo:
            outs = {Path(out.fs_path).relative_to(repo.root_dir).as_posix(): out.use_cache for out in repo.index.outs}
    except (DvcException, ValueError) as error:
        raise UserError(f"{folder}: {error}") from None
    top_level = read_yaml((folder / "dvc.yaml").read_bytes()) or {}
    declared = [entry for kind in ("metrics", "plots") for entry in top_level.get(kind) or ()]
    paths = [next(iter(entry)) if isinstance(entry, dict) else entry for entry in declared]
    artifacts = [str(artifact["path"]) for artifact in (top_level.get("artifacts") or {}).values()]
    return (*(path for path in outs if not outs[path]), *paths, *(path for path in artifacts if not outs.get(path)))


def is_result(path: str, results: Sequence[str]) -> bool:
    """True if a run may change this tracked file."""
    by_dvc = path.endswith(("dvc.lock", ".gitignore"))
    return by_dvc or any(path == result or path.startswith(f"{result}/") for result in results)


def source_address(default: str) -> str:
    """The repository that this worker runs. It cannot be a parameter of a run, because its code is executed."""
    source = os.environ.get(SOURCE_VARIABLE) or default
    return str(Path(source).absolute()) if Path(source).exists() else source


def checkout_folder() -> Path:
    """This worker's checkout."""
    if folder := os.environ.get(CHECKOUT_VARIABLE):
        return Path(folder).absolute()
    return (private_state_dir() / "checkout").absolute()


def require_names(*names: str) -> None:
    """Raise UserError if git does not allow a name as a branch, or would parse it as an option."""
    for name in names:
        allowed = git(Path(), "check-ref-format", "--normalize", f"refs/heads/{name}", check=False)
        if name.startswith("-") or not allowed:
            raise UserError(f"`{name}`: not a valid branch or stage name")


def as_task(name: str, work: Callable[..., Any], delays_seconds: Sequence[float] = ()) -> Any:
    """Wrap a function as a Prefect task, retried after each delay if a remote does not answer."""
    return Task(
        work,
        name=name,
        task_run_name=name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=len(delays_seconds),
        retry_delay_seconds=list(delays_seconds),
        retry_condition_fn=lambda _, run, state: isinstance(state.result(raise_on_failure=False), UnavailableError),
    )
