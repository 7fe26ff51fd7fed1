"""Git, run in a folder."""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from backports import tarfile

from stages.runtime.entry import UserError


def own_environment() -> dict[str, str]:
    """This process's environment, without what a git hook says of another repository."""
    named = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")
    return {name: value for name, value in os.environ.items() if name not in named}


def git(folder: Path, *arguments: str, check: bool = True) -> str:
    """Run git; what it prints. Raises UserError where it fails; without `check` that gives an empty text."""
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=own_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        if not check:
            return ""
        raise UserError(f"git {arguments[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip("\n")


def unpack(folder: Path, commit: str, names: Iterable[str], into: Path) -> None:
    """Write what a folder has under some names at a commit; names that it does not have are left out."""
    if there := git(folder, "ls-tree", "--name-only", commit, "--", *names).splitlines():
        archive = into / ".tar"
        git(folder, "archive", "--format=tar", f"--output={archive}", commit, "--", *there)
        with tarfile.open(archive) as tar:
            tar.extractall(into, filter="tar")
        archive.unlink()
