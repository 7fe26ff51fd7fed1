"""The source archive of a revision, and the state of git: the commit, its origin, and whether files differ from it.

The archive contains the code folders as git tracks or would add them, and the stages' inputs that git tracks. A file
with a credential is an error, not left out, because the revision could not be rebuilt without it.
"""

import gzip
import io
import os
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from stages.formats.revision.provenance import Stages
from stages.formats.revision.statement import GitState
from stages.publish.lock import outside_deps
from stages.runtime.code import PACKAGES
from stages.runtime.credentials import HUB_TOKEN, SECRET_NAMES, credentials, without_credentials
from stages.runtime.errors import UserError
from stages.runtime.preflight import DVC_FILE, LOCK_FILE
from stages.runtime.section import PARAMS_FILE
from stages.runtime.stage_code import REQUIREMENTS_LOCK

CODE = (*PACKAGES, "pyproject.toml", ".dvcignore", ".dvc/config")
"""The code folders, and the files that define the libraries, what DVC ignores, and DVC's remotes."""

COPIED = (str(PARAMS_FILE), str(DVC_FILE), str(REQUIREMENTS_LOCK), str(LOCK_FILE))
"""Files that the record copies."""

PRIVATE_FILES = (".env", ".env.*", ".netrc", "*.pem", "*.key", "id_rsa*", "id_ed25519*")
"""Names of files that are never published."""

SETTINGS_SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf", ".lock", ".dvc", "config")
"""Suffixes of files whose URLs are in use, not examples."""


def archive_source(stages: Stages, target: Path, *, include_data: bool) -> GitState:
    """Write the archive, a .tar.gz that depends only on the files, and return the state of git.

    `stages` are the entries of dvc.lock that led to the revision. `include_data` adds untracked inputs. Raises
    UserError if git has no commit here, or a file cannot be archived.
    """
    commit = git_output("rev-parse", "HEAD").strip()
    inputs = source_files_of(stages)
    added = git_files("--others", "--exclude-standard", "--", *CODE)
    files = added + git_files("--cached", "--", *CODE, *inputs)
    edited = git_output("diff", "--name-only", "HEAD", "--", *CODE, *COPIED, *inputs).splitlines()
    dirty = bool(added or {*edited} - {str(LOCK_FILE)})  # each run writes dvc.lock
    if include_data and inputs:
        files += git_files("--others", "--exclude-per-directory=.dvcignore", "--", *inputs)
    write_archive(_checked(sorted({*files} - {*COPIED}), inputs), target)
    remotes = git_output("remote").split()
    origin = public_url(git_output("remote", "get-url", "origin").strip()) if "origin" in remotes else None
    return GitState(commit=commit, dirty=dirty, origin=origin)


def check_code() -> None:
    """Raise UserError if a file of the code, or a file that the record copies, cannot be published."""
    for _ in _checked(git_files("--cached", "--others", "--exclude-standard", "--", *CODE, *COPIED), ()):
        pass


def _checked(files: Iterable[str], inputs: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of the files that exist, one at a time, since data may not fit into memory."""
    for path in filter(os.path.lexists, files):
        if Path(path).is_symlink() or not Path(path).is_file():
            raise UserError(
                f"{path}: is a link or a nested repository, which a revision cannot contain: replace it with its files"
            )
        content = Path(path).read_bytes()
        is_data = any(Path(path).is_relative_to(folder) for folder in inputs)  # URLs in a corpus of code are examples
        require_no_secret(path, content, in_urls=path.endswith(SETTINGS_SUFFIXES) and not is_data)
        yield path, content


def source_files_of(stages: Stages) -> list[str]:
    """`outside_deps` of the stages, and the .dvc files that would track them."""
    inputs = [path for path in outside_deps(stages) if "://" not in path]
    kept = (f"{part}.dvc" for path in map(Path, inputs) for part in (path, *path.parents) if part.name)
    return list(dict.fromkeys((*inputs, *kept)))


def git_output(*arguments: str) -> str:
    """Run git and return its output. Raises UserError with git's message if it fails."""
    # Without optional locks git writes nothing and disturbs no other git command.
    command = ["git", "--no-optional-locks", "--literal-pathspecs", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        raise UserError(
            "git: not found, but it lists the code to publish: install it and run the same command again"
        ) from None
    if done.returncode:
        message = done.stderr.decode("utf-8", "replace").strip()
        raise UserError(
            f"nothing was published: a revision names the commit of its code, but git reports none: {message}\n"
            "If there is no commit yet, `git init`, `git add -A` and `git commit` make the first"
        )
    return done.stdout.decode("utf-8", "surrogateescape")


def git_files(*arguments: str) -> list[str]:
    """The files that `git ls-files` prints, relative to this folder."""
    return git_output("ls-files", "-z", *arguments).split("\0")[:-1]


def write_archive(files: Iterable[tuple[str, bytes]], target: Path) -> None:
    """Write a .tar.gz of some files, in the given order, without times, owners or names of this machine."""
    with (
        target.open("wb") as stream,
        gzip.GzipFile(fileobj=stream, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, content in files:
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = 0o755 if Path(path).stat().st_mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(content))


REMOTE = re.compile(r"(?!file:)[\w+.-]+://|[\w.-]+@[\w.-]+:")
"""The beginning of a remote address: a URL, or ssh's short form `git@example.com:owner/name`."""


def public_url(url: str) -> str | None:
    """A URL without credentials, with ssh's short form expanded; None for a local path."""
    short = re.fullmatch(r"([\w.-]+@[\w.-]+):(?!//)/?(.+)", url)
    return without_credentials(f"ssh://{short[1]}/{short[2]}" if short else url) if REMOTE.match(url) else None


def require_no_secret(path: str, content: bytes, *, in_urls: bool) -> None:
    """Raise UserError if a file that would be published has a private name or contains a credential."""
    private = any(fnmatch(Path(path).name, pattern) for pattern in PRIVATE_FILES)
    secret = "its name" if private else find_secret(content, in_urls=in_urls, by_name=path.startswith(".dvc/"))
    if secret:
        raise UserError(
            f"{path}: has what looks like a credential ({secret}), and would be published: remove it, and put it into "
            "an environment variable, ~/.netrc, .dvc/config.local or a library's own configuration; or keep the "
            "file out of git (`git rm --cached`)"
        )


MIN_SECRET_LENGTH = 12
"""Shorter values, such as `true`, may occur in any text."""

BY_ENTROPY_OR_NAME = {"Base64HighEntropyString", "HexHighEntropyString", "KeywordDetector", "IPPublicDetector"}
BY_ENTROPY_OR_NAME |= {"BasicAuthDetector"}
"""Excluded detectors, which match hashes, test data and ordinary code. `in_urls` finds passwords in URLs."""

OF_A_CONFIGURATION = re.compile(r"(?im)^\s*\w*(?:token|secret|password|key)\w*\s*=\s*\S")
"""Settings in DVC's configuration whose names are those of credentials."""


def find_secret(content: bytes, *, in_urls: bool = False, by_name: bool = False) -> str | None:
    """The kind and line of a credential in a file; None if there is none of a known form.

    Known forms are those of detect-secrets, and the values of this process's secret variables. `in_urls` also finds
    passwords and signatures in URLs, which in code are mostly examples; `by_name` finds settings by their names.
    """
    text = content.decode("utf-8", "replace")
    for name, value in os.environ.items():
        if SECRET_NAMES.search(name) and len(value) >= MIN_SECRET_LENGTH and value in text:
            return f"the value of {name}, line {_line(text, text.index(value))}"
    by_names = (("Credential in a configuration", OF_A_CONFIGURATION),) if by_name else ()
    by_form = ((match.start(), kind) for kind, form in (*by_names, *forms()) for match in form.finditer(text))
    by_url = ((position, f"a URL with {kind}") for position, kind in credentials(text)) if in_urls else ()
    for position, kind in chain(by_form, by_url):
        line = _line(text, position)
        if "pragma: allowlist secret" not in text.split("\n")[line - 1]:  # as detect-secrets
            return f"{kind}, line {line}"
    return None


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


@cache
def forms() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Kind of credential -> its pattern."""
    # Imported here: it takes half a second.
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    detectors: list[Any] = list(get_mapping_from_secret_type_to_class().values())
    detectors = [detector for detector in detectors if detector.__name__ not in BY_ENTROPY_OR_NAME]
    patterns = [(str(detector.secret_type), pattern) for detector in detectors for pattern in detector.denylist]
    return (("Hugging Face token", HUB_TOKEN), *patterns)  # detect-secrets lacks the first
