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
