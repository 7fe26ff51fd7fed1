"""The checkout that a deployment works in: brought up to its branches, and what came of a run committed to one.

It belongs to the deployment alone, and lies apart from where people work. What a killed run left in tracked files is
undone: DVC's run-cache and the checkpoints, which git does not track, give all of it back.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from stages.runtime.entry import UnavailableError, UserError

RESULTS = ("reports/", "params.yaml")
WRITTEN_BY_DVC = ("dvc.lock", ".gitignore")
"""What a run may change among the tracked files, by the start and by the end of their paths; anything else is not
committed, and said."""

COMMITTER = ("-c", "user.name=parrotflow", "-c", "user.email=parrotflow@localhost")
"""Where git has no identity on this machine."""


def bring_up_to_date(folder: Path, source: str, branch: str, results_branch: str) -> str:
    """Clone or update; afterwards HEAD is `results_branch` with `branch` merged into it. Returns HEAD's commit.

    Raises UnavailableError where `source` does not answer, UserError where a branch is missing or cannot be merged.
    """
    if not (folder / ".git").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _git(folder, "init", "--quiet")
        _git(folder, "remote", "add", "origin", source)
    _git(folder, "remote", "set-url", "origin", source)
    _git(folder, "fetch", "--quiet", "--prune", "origin", unavailable=True)
    if not _exists(folder, f"origin/{branch}"):
        raise UserError(f"{source}: no branch `{branch}`; name one that exists")
    start = f"origin/{results_branch}" if _exists(folder, f"origin/{results_branch}") else f"origin/{branch}"
    _git(folder, "checkout", "--quiet", "--force", "-B", results_branch, start)
    # Where both sides have results, this branch's stand: what they do not fit is computed again.
    merge = [*_committer(folder), "merge", "--quiet", "-X", "ours", "-m", f"Take {branch} in", f"origin/{branch}"]
    try:
        _git(folder, *merge)
    except UserError as error:
        _git(folder, "merge", "--abort")
        raise UserError(f"{results_branch} cannot take {branch} in: {error}; merge them by hand once") from None
    return head(folder)


def commit_results(folder: Path, message: str, results_branch: str) -> str | None:
    """Commit what a run changed and push it, never by force; the commit, or None where nothing changed.

    Raises UserError where files changed that are no results, or where the branch has moved on meanwhile.
    """
    changed = _changed(folder)
    others = [path for path in changed if not path.startswith(RESULTS) and not path.endswith(WRITTEN_BY_DVC)]
    if others:
        raise UserError(
            f"{folder}: {', '.join(others[:5])} changed during the run and are no results; nothing committed"
        )
    if not changed:
        return None
    _git(folder, "add", "--all", "--", *changed)
    _git(folder, *_committer(folder), "commit", "--quiet", "-m", message)
    _git(folder, "push", "--quiet", "origin", f"HEAD:refs/heads/{results_branch}", unavailable=True)
    return head(folder)


def head(folder: Path) -> str:
    """The commit that is checked out."""
    return _git(folder, "rev-parse", "HEAD")


def _changed(folder: Path) -> list[str]:
    entries = _git(folder, "status", "--porcelain", "--untracked-files=all", "-z").split("\0")
    return [entry[3:] for entry in entries if entry]


def _exists(folder: Path, name: str) -> bool:
    command = ["git", "rev-parse", "--quiet", "--verify", name]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


def _committer(folder: Path) -> Sequence[str]:
    found = subprocess.run(["git", "config", "user.email"], cwd=folder, capture_output=True, check=False)
    return () if found.stdout.strip() else COMMITTER


def _git(folder: Path, *arguments: str, unavailable: bool = False) -> str:
    result = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        command = next(word for word in arguments if word.isalpha())
        words = f"git {command}: {result.stderr.strip() or result.stdout.strip()}"
        raise UnavailableError(words) if unavailable else UserError(words)
    return result.stdout.strip("\n")
