"""What git knows of the project: the commit, where it can be cloned from, and what differs from it."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit, urlunsplit

from stages.formats.revision.lock import overlaps
from stages.formats.revision.provenance import GitState

CHANGED_SHOWN = 100
"""The most files that differ from the commit and are named."""

HOST_AND_PATH = re.compile(r"[\w.-]+@[\w.-]+:[^\\]+")
"""How ssh is written in short: `git@example.com:owner/name.git`."""


def observe_git(written: Sequence[str]) -> GitState | None:
    """The commit, and whether code or parameters differ from it; None outside a repository.

    The paths in `written` are results of the pipeline, which do not count as changes.
    """
    commit, folder = run_git("rev-parse", "HEAD"), run_git("rev-parse", "--show-prefix")
    status = run_git("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--", ".")
    if commit is None or folder is None or status is None:
        return None
    prefix = folder.strip()
    entries = [(entry[:2], entry[3:].removeprefix(prefix)) for entry in status.split("\0") if entry]
    entries = [entry for entry in entries if not any(overlaps(entry[1], out) for out in written)]
    changed = sorted(path for state, path in entries if state != "??")
    origin, on_remote = remote_of(commit.strip())
    return GitState(
        commit=commit.strip(),
        dirty=bool(entries),
        changed=[printable(path) for path in changed[:CHANGED_SHOWN]],
        untracked=len(entries) - len(changed),
        origin=origin,
        on_remote=on_remote,
        folder=prefix.rstrip("/"),
    )


def remote_of(commit: str) -> tuple[str | None, bool]:
    """The URL of the remote repository and whether it has the commit, as far as this clone knows without asking it."""
    remotes = (run_git("remote") or "").split()
    for remote in sorted(remotes, key=lambda name: name != "origin"):
        url = public_url((run_git("remote", "get-url", remote) or "").strip())
        if url is not None:
            found = run_git("for-each-ref", "--contains", commit, "--count=1", f"refs/remotes/{remote}")
            return url, bool(found)
    return None, False


def printable(path: str) -> str:
    """A path as JSON can hold it: bytes that are not UTF-8 are written out, e.g. `\\udce9`."""
    return path.encode("utf-8", "backslashreplace").decode("utf-8")


def public_url(url: str) -> str | None:
    """A URL without user, password, query and fragment; None for a path of this machine.

    The user of ssh, mostly `git`, is kept: without it nothing can be cloned.
    """
    parts = urlsplit(url)
    if not parts.netloc or parts.scheme == "file":
        return url if HOST_AND_PATH.fullmatch(url) else None
    user, _, host = parts.netloc.rpartition("@")
    user = f"{user.partition(':')[0]}@" if user and parts.scheme.endswith("ssh") else ""
    return urlunsplit((parts.scheme, user + host, parts.path, "", ""))


def tracked_files() -> list[str]:
    """The files in this folder that git knows."""
    return (run_git("ls-files", "-z", "--cached") or "").split("\0")[:-1]


def changed_files() -> list[str]:
    """The files in this folder that git knows and that differ from the commit, deleted ones included."""
    return (run_git("diff", "--name-only", "-z", "--no-renames", "--relative", "HEAD") or "").split("\0")[:-1]


def untracked_files() -> list[str]:
    """The files in this folder that git neither knows nor ignores; outside a repository all that are not ignored."""
    found = run_git("ls-files", "-z", "--others", "--exclude-standard")
    return all_files("--exclude-standard") if found is None else found.split("\0")[:-1]


def all_files(*arguments: str) -> list[str]:
    """What `git ls-files --others` lists in a repository that knows no file: all that is not ignored."""
    with TemporaryDirectory() as folder:
        run_git("init", "--quiet", "--bare", folder)
        found = run_git("--git-dir", folder, "--work-tree", ".", "ls-files", "-z", "--others", *arguments)
    return (found or "").split("\0")[:-1]


def files_of_dvc(folder: Path) -> list[Path]:
    """The files of a folder as DVC counts them, sorted: those that .dvcignore ignores do not count."""
    paths = [Path(path) for path in all_files("--exclude-per-directory=.dvcignore", "--", folder.as_posix())]
    # Of a repository in the folder git lists only the folder.
    inner = (file for path in paths if path.is_dir() for file in path.rglob("*") if ".git" not in file.parts)
    return sorted(path for path in (*paths, *inner) if path.is_file())


def committed(path: str) -> bytes | None:
    """A file's content in the commit; None where it has none."""
    return git_output("show", f"HEAD:./{path}")


def run_git(*arguments: str) -> str | None:
    """What git prints, as text; None if it fails or is not installed."""
    output = git_output(*arguments)
    return None if output is None else output.decode("utf-8", "surrogateescape")


def git_output(*arguments: str) -> bytes | None:
    """What git prints; None if it fails or is not installed."""
    try:
        # Without optional locks: looking at the project writes nothing, and disturbs no other git command.
        return subprocess.run(["git", "--no-optional-locks", *arguments], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
