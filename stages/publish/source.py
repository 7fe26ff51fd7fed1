"""The source archive of a revision: the code that its commit alone does not have.

Where the commit can be cloned, these are the tracked files that differ from it and the untracked ones that a stage
depends on. Where it cannot (no repository, or a commit that is on no remote), it is every file that a run needs.

The code that is kept is the code that ran: a file that was edited after its stage ran is taken from the commit, if that
has the version which ran, or else left out and named. Comments and docstrings are no edits.
What git ignores stays out, and what holds a credential: it is looked for in all that is about to be published.

Here is too what git knows of the project: the commit, where it can be cloned from, and what differs from it.
"""

import gzip
import hashlib
import io
import os
import re
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stages.formats.revision.lock import Stages, overlaps
from stages.formats.revision.provenance import GitState, LeftOut, SourceArchive, printable
from stages.publish.lock import COPIED, outside_deps, recorded_code
from stages.runtime.code import read_module
from stages.runtime.credentials import PARTS, SECRET_NAMES, credentials
from stages.runtime.entry import UserError

LARGEST = 1_000_000
"""Bytes of a file of code. A larger one is data, of which only the hash is kept."""

CODE = ("stages/*.py", "flows/*.py", "stages/*.jinja", "flows/*.jinja")
LAUNCH = ("deploy/launch/*", "conf/*", "pyproject.toml", "README.md", ".dvcignore")
"""What a run needs besides the dependencies of its stages, in a project without a repository."""

PRIVATE = (".env", ".env.*", ".netrc", "*.pem", "*.key", "id_rsa*", "id_ed25519*")
"""Names of files that are never archived."""

SETTINGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf", ".lock")
"""Endings of files whose URLs are used, not shown as examples."""

EDITED = "was edited after the stage ran; the version that ran is neither here nor in the commit"


@dataclass(frozen=True, slots=True)
class CodeArchive:
    """The source archive, as bytes and in words."""

    content: bytes
    """A .tar.gz, the same for the same files."""
    archive: SourceArchive | None
    """None where the commit has everything."""
    left_out: list[LeftOut]


def archive_source(state: GitState | None, stages: Stages, written: list[str]) -> CodeArchive:
    """Archive the code that the commit of `state` does not have.

    `stages` are the entries of dvc.lock that led to the revision; `written` are the paths of the pipeline's results.
    """
    ran = content_that_ran(stages)
    whole = state is None or not state.on_remote
    tracked, changed = set(tracked_files()), set(changed_files())
    added = {path for path in untracked_files() if is_needed(path, ran, repository=state is not None)}
    kept: dict[str, bytes] = {}
    left_out = [LeftOut(path=path, reason=EDITED) for path, code in recorded_code(stages).items() if code is None]
    deleted: list[str] = []
    for path in sorted((tracked | added) - COPIED):
        asked = whole or path in changed or path in added
        if any(overlaps(path, out) for out in written) or not (asked or path in ran):
            continue
        content = version_that_ran(path, ran.get(path))
        reason = None
        if asked and Path(path).is_symlink():
            reason = "is a link"
        elif asked and Path(path).is_dir():
            reason = "is a folder of another repository"
        elif content is None and path in ran:
            reason = EDITED
        elif content is None:
            deleted.append(path)
        elif asked and (whole or content != committed(path)):
            reason = why_not(path, content)
            kept |= {} if reason else {path: content}
        if reason:
            left_out.append(LeftOut(path=printable(path), reason=reason))
    deleted = [] if whole else deleted
    if not kept and not deleted:
        return CodeArchive(b"", None, left_out)
    packed = pack(kept)
    archive = SourceArchive(
        sha256=hashlib.sha256(packed).hexdigest(),
        files={printable(path): hashlib.sha256(content).hexdigest() for path, content in kept.items()},
        whole=whole,
        deleted=[printable(path) for path in deleted],
    )
    return CodeArchive(packed, archive, left_out)


def content_that_ran(stages: Stages) -> dict[str, Callable[[bytes], bool]]:
    """File that stages depend on -> whether a content is the one that they ran with."""
    found: dict[str, Callable[[bytes], bool]] = {
        dep["path"]: partial(has_md5, dep["md5"])
        for dep in outside_deps(stages)
        if dep.get("hash") == "md5" and "nfiles" not in dep
    }
    codes = (code for code in recorded_code(stages).values() if code)
    return found | {path: partial(has_syntax, path, sha256) for code in codes for path, sha256 in code.files.items()}


def has_md5(md5: str, content: bytes) -> bool:
    """Whether a content is the one that dvc.lock names."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest() == md5


def has_syntax(path: str, sha256: str, content: bytes) -> bool:
    """Whether a content is code with that hash of its syntax tree."""
    try:
        return read_module(content, path).sha256 == sha256
    except (SyntaxError, ValueError):
        return False


def is_needed(path: str, ran: Mapping[str, object], *, repository: bool) -> bool:
    """Whether a file that git does not know belongs to the code. Files in a folder of data never do."""
    patterns = CODE if repository else (*CODE, *LAUNCH)
    return path in ran or any(fnmatch(path, pattern) for pattern in patterns)


def version_that_ran(path: str, ran: Callable[[bytes], bool] | None) -> bytes | None:
    """The content of a file that its stage ran with; None where it is lost, or the file was deleted.

    Without `ran` no stage depends on the file: then it is as it is now.
    """
    here = Path(path).read_bytes() if Path(path).is_file() else None
    if ran is None or (here is not None and ran(here)):
        return here
    there = committed(path)
    return there if there is not None and ran(there) else None


def why_not(path: str, content: bytes) -> str | None:
    """Why a file may not be archived; None if it may."""
    if has_private_name(Path(path)):
        return "a file of this name may hold credentials"
    if len(content) > LARGEST:
        return f"larger than {LARGEST} bytes"
    of_dvc = path.startswith(".dvc/")
    secret = find_secret(content, in_urls=of_dvc or path.endswith(SETTINGS), by_name=of_dvc)
    return secret and f"holds what looks like a credential: {secret}"


def has_private_name(path: Path) -> bool:
    """Whether files of this name hold credentials."""
    return any(fnmatch(path.name, pattern) for pattern in PRIVATE)


def pack(files: Mapping[str, bytes]) -> bytes:
    """A .tar.gz of some files: sorted, without times, owners or names of this machine."""
    stream = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(files):
            entry = tarfile.TarInfo(path)
            entry.size = len(files[path])
            entry.mode = 0o755 if Path(path).is_file() and Path(path).stat().st_mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(files[path]))
    return stream.getvalue()


SHORTEST = 12
"""A shorter value of such a variable (`true`, `password`) may stand in any text."""

BY_ENTROPY_OR_NAME = {
    "Base64HighEntropyString",
    "HexHighEntropyString",
    "KeywordDetector",
    "IPPublicDetector",
    "BasicAuthDetector",
}
"""Detectors that hit hashes, test data and ordinary code. Passwords in URLs are found by `in_urls`."""

ALLOWED = "pragma: allowlist secret"
"""A line with this comment is not looked at: detect-secrets' own mark."""

HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")
"""Of the Hugging Face Hub, for which detect-secrets has no detector."""


OF_A_CONFIGURATION = re.compile(r"(?im)^\s*\w*(?:token|secret|password|key)\w*\s*=\s*\S")
"""In DVC's configuration: a credential by its name."""


def find_secret(content: bytes, *, in_urls: bool = False, by_name: bool = False) -> str | None:
    """What kind of credential a file holds, and in which line; None where it holds none that is known by its form.

    Forms are those of detect-secrets, and the values of this process's own secret variables. `in_urls` also finds
    passwords and signatures in URLs, which in code are mostly examples; `by_name` those of a configuration, by their
    names.
    """
    text = content.decode("utf-8", "replace")
    for name, value in os.environ.items():
        if SECRET_NAMES.search(name) and len(value) >= SHORTEST and value in text:
            return f"the value of {name}, line {_line(text, text.index(value))}"
    by_names = (("Credential in a configuration", OF_A_CONFIGURATION),) if by_name else ()
    by_form = ((match.start(), kind) for kind, form in (*by_names, *forms()) for match in form.finditer(text))
    by_url = ((position, f"a URL with {kind}") for position, kind in credentials(text)) if in_urls else ()
    for position, kind in chain(by_form, by_url):
        line = _line(text, position)
        if ALLOWED not in text.split("\n")[line - 1]:
            return f"{kind}, line {line}"
    return None


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


@cache
def forms() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Kind of credential -> its pattern."""
    # Half a second of imports, needed only where something is published for the first time.
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    detectors: list[Any] = list(get_mapping_from_secret_type_to_class().values())
    detectors = [detector for detector in detectors if detector.__name__ not in BY_ENTROPY_OR_NAME]
    found = [(str(detector.secret_type), pattern) for detector in detectors for pattern in detector.denylist]
    return (("Hugging Face token", HUB_TOKEN), *found)


CHANGED_SHOWN = 100
"""The most files that differ from the commit and are named."""

HOST_AND_PATH = re.compile(r"[\w.-]+@[\w.-]+:[^\\]+")
"""How ssh is written in short: `git@example.com:owner/name.git`."""


def observe_git(written: Sequence[str]) -> GitState | None:
    """The commit, and whether code or parameters differ from it; None outside a repository.

    The paths in `written` are results of the pipeline, which do not count as changes. Raises UserError with git's own
    words if it refuses to read the repository, e.g. one of another user.
    """
    require_readable_repository()
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


def require_readable_repository() -> None:
    """Raise UserError with git's own words if there is a repository here that git does not read."""
    here = Path.cwd()
    if not any((folder / ".git").exists() for folder in (here, *here.parents)):
        return
    done = subprocess.run(["git", "rev-parse", "--git-dir"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"git cannot read this repository, so nothing was published: {done.stderr.strip()}")


def remote_of(commit: str) -> tuple[str | None, bool]:
    """The URL of the remote repository and whether it has the commit, as far as this clone knows without asking it."""
    remotes = (run_git("remote") or "").split()
    for remote in sorted(remotes, key=lambda name: name != "origin"):
        url = public_url((run_git("remote", "get-url", remote) or "").strip())
        if url is not None:
            found = run_git("for-each-ref", "--contains", commit, "--count=1", f"refs/remotes/{remote}")
            return url, bool(found)
    return None, False


def public_url(url: str) -> str | None:
    """A URL without user, password, query and fragment; None for a path of this machine.

    The user of ssh, mostly `git`, is kept: without it nothing can be cloned.
    """
    match = PARTS.fullmatch(url)
    if match is None or match[1] == "file" or match[3].startswith("/"):
        return url if HOST_AND_PATH.fullmatch(url) else None
    scheme, login, host_and_path, _ = match.groups()
    user = f"{login.partition(':')[0]}@" if login and scheme.endswith("ssh") else ""
    return f"{scheme}://{user}{host_and_path}"


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
    """What git prints, as text; None if it fails."""
    output = git_output(*arguments)
    return None if output is None else output.decode("utf-8", "surrogateescape")


def git_output(*arguments: str) -> bytes | None:
    """What git prints; None if it fails. Raises UserError where it is not installed."""
    try:
        # Without optional locks: looking at the project writes nothing, and disturbs no other git command.
        return subprocess.run(["git", "--no-optional-locks", *arguments], capture_output=True, check=True).stdout
    except FileNotFoundError:
        raise UserError(
            "git: not found, which says what code ran and what files a folder has: the record would be wrong; install "
            "it and run the same command again"
        ) from None
    except (OSError, subprocess.CalledProcessError):
        return None
