"""Git, as a program."""

import subprocess
from pathlib import Path

from flows.dvc_repo.internals import own_environment
from stages.runtime.entry import UserError


def git(folder: Path, *arguments: str, check: bool = True, error: type[UserError] = UserError) -> str:
    """Run git; what it prints. Raises `error` where it fails; without `check` that gives an empty text."""
    command = ["git", "-c", "core.quotePath=off", *arguments]  # else names that are not ASCII are no paths
    done = subprocess.run(command, cwd=folder, env=own_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        if not check:
            return ""
        raise error(f"git {arguments[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip("\n")


def give_identity(folder: Path) -> None:
    """Let commits be made in a repository of ours where this machine has no identity for git."""
    if not git(folder, "config", "user.email", check=False):
        git(folder, "config", "user.name", "parrotflow")
        git(folder, "config", "user.email", "parrotflow@localhost")


def experiment_ref(baseline: str, name: str) -> str:
    """The reference of git that leads to an experiment, which DVC names by the commit that it was started from."""
    return f"refs/exps/{baseline[:2]}/{baseline[2:]}/{name}"


def has_commit(commit: str, folder: Path = Path()) -> bool:
    """Whether git has a commit in a folder's repository. A clone has no DVC experiment before `dvc exp pull`."""
    command = ["git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
    done = subprocess.run(command, cwd=folder, env=own_environment(), capture_output=True, check=False)
    return done.returncode == 0
