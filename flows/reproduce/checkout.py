"""The code of a revision -> `WORK/checkout`: its commit, what differed from it, and the files that the record has.

The archive of what differed is other people's: unpacked within bounds, and nowhere but in one folder.
"""

import contextlib
import lzma
import re
import shutil
import sys
import tarfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from dvc.exceptions import DvcException
from dvc.repo import Repo

from flows.dvc_repo.git import has_commit
from flows.reproduce.commands import output, run_quietly, without_secrets
from flows.reproduce.revision import RecordedRevision, changed_code, code_read
from stages.formats.revision.provenance import (
    PROVENANCE,
    RECORDED_LOCK,
    RECORDED_PARAMS,
    RECORDED_PIPELINE,
    RECORDED_REQUIREMENTS,
    SOURCE_ARCHIVE,
    printable,
)
from stages.runtime.atomic import atomic_folder, atomic_write
from stages.runtime.credentials import without_credentials
from stages.runtime.entry import STATE_DIR, UnavailableError, UserError, first_line
from stages.runtime.stage_code import FOLDER, stage_codes

CHECKOUT = "checkout"

WRITTEN_BACK = (RECORDED_PARAMS, RECORDED_PIPELINE, RECORDED_LOCK, RECORDED_REQUIREMENTS)
"""Recorded files that the stages read, or that say what they are; the lock of the commit is an older one."""

COMMIT = re.compile("[0-9a-f]{40,64}")
"""A whole hash: anything else might be a name, or an option of git."""

CARRIED = (".dvc/cache", ".dvc/tmp", STATE_DIR.as_posix(), FOLDER.as_posix())
"""Results and states of runs, in a project; what it says of its code is computed anew."""

OWN_CACHE = "[cache]\n    dir = cache\n"
"""Of DVC: a cache that others share might have the very results that are to be computed again."""

THIS_PROJECT = "this-project"
"""The name, in the checkout, of the DVC remote that is the cache of the project in which the command runs."""

NOT_UNPACKED = (OSError, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)
"""What an archive that is damaged or of another kind is found by."""

MOST_FILES = 100_000

FREE_BYTES, MOST_RATIO = 64 << 20, 50
"""An archive may unpack to the first plus the second times its own size: weights hardly shrink, text to a tenth."""


def check_out(revision: RecordedRevision, source: str | None) -> Path:
    """The project's folder in the checkout, which is made once."""
    checkout, git, archive = revision.work / CHECKOUT, revision.provenance.git, revision.provenance.source
    # An archive of the whole project has no other folders of the repository.
    folder = git.folder if git is not None and not (archive and archive.whole) else ""
    if not checkout.exists():
        with atomic_folder(checkout) as partial:
            output(["git", "init", "--quiet"], partial)
            if archive is None or not archive.whole:
                fetch_commit(revision, partial, source)
            project = inside(partial, folder)
            if archive is not None:  # what differed from the commit; a file may have become a folder
                for path in archive.deleted:
                    remove(inside(project, path))
                unpack(revision.folder / SOURCE_ARCHIVE, project, f"{revision.asked}: {SOURCE_ARCHIVE}", archive.files)
            if not project.is_dir():
                raise UserError(
                    f"{revision.asked}: its commit has no folder {folder}, where the record has the project"
                )
            remove_results(project)
    return inside(checkout, folder)


def remove_results(project: Path) -> None:
    """Remove what a commit or an archive may carry and no run may take its results from: caches and checkpoints."""
    if (project / ".dvc").is_symlink():
        raise UserError("in the recorded commit .dvc is a link, which DVC would write through")
    for name in CARRIED:
        remove(project / name)


def remove(place: Path) -> None:
    """Remove a file or a folder, and of a link only the link."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def inside(root: Path, path: str) -> Path:
    """A recorded path below a folder. Raises UserError where it leads out of it, also through a link."""
    if not (root / path).resolve().is_relative_to(root.resolve()):
        raise UserError(f"the record names {path}, which is outside of its project; nothing was written there")
    return root / path


def fetch_commit(revision: RecordedRevision, checkout: Path, source: str | None) -> None:
    """Check out the recorded commit: from `source`, else from this project if it has it, else from the origin.

    Raises UserError that says where it was looked for.
    """
    git = revision.provenance.git
    if git is None:
        raise UserError(f"{revision.asked}: records neither a commit nor an archive of its code: it cannot be rebuilt")
    for name, value, well_formed in (
        ("commit", git.commit, COMMIT.fullmatch(git.commit)),
        ("place", source or git.origin, not (source or git.origin or "").startswith("-")),
    ):
        if not well_formed:
            raise UserError(f"{revision.asked}: `{value}` is no {name} that git could fetch")
    said = run_quietly(["git", "config", "--get-regexp", r"^remote\..*\.url$"], Path.cwd()).stdout
    remotes_of_this_project = {without_credentials(line.partition(" ")[2]) for line in said.splitlines()}
    looked: list[str] = []
    for place in [source] if source else [str(Path.cwd()), git.origin]:
        if place is None or (place == str(Path.cwd()) and not has_commit(git.commit, Path(place))):
            looked += [place] if place else []
            continue
        # At a place that is the user's own git has the keys of the SSH agent, which no other gets.
        is_own = place == source or place in remotes_of_this_project
        own = without_secrets(("SSH_AUTH_SOCK", "GIT_SSH_COMMAND") if is_own else ())
        address = str(Path(place).absolute()) if Path(place).exists() else place
        fetch = ["git", "fetch", "--quiet", "--no-tags", "--depth", "1", address, git.commit]
        done = run_quietly(fetch, checkout, own)
        if done.returncode == 0:
            output(["git", "checkout", "--quiet", "--detach", git.commit], checkout)
            return
        looked.append(f"{place} ({(done.stderr.strip() or 'no answer').splitlines()[-1]})")
    places = ", ".join(looked) or "no place is recorded"
    pushed = "" if git.on_remote or source else "; the record says that it was not pushed to its origin"
    raise (UnavailableError if git.on_remote and not source else UserError)(
        f"{revision.asked}: commit {git.commit} was not found in {without_credentials(places)}{pushed}; "
        "name a clone or a URL that has it with --source"
    )


def unpack(archive: Path, folder: Path, asked: str, listed: Collection[str]) -> None:
    """Unpack a .tar.gz; links and paths that lead out of the folder are not written.

    Raises UserError where it is damaged, holds more than it may, or other files than are `listed`, by which the user
    is asked whether they may run: that is checked before each file is written.
    """
    if not hasattr(tarfile, "data_filter"):
        raise UserError(f"{asked}: only Python 3.11.4 or newer unpacks an archive within a folder; use such a Python")
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, members=bounded(packed, archive, asked, listed), filter="data")
    except NOT_UNPACKED as error:
        raise UserError(f"{asked}: no .tar.gz that can be unpacked ({first_line(error)})") from None


def bounded(items: tarfile.TarFile, archive: Path, asked: str, listed: Collection[str]) -> Iterator[tarfile.TarInfo]:
    """The members in their order, until they are too many or too large together, or one is not listed."""
    allowed, total = FREE_BYTES + MOST_RATIO * archive.stat().st_size, 0
    for number, item in enumerate(items, 1):
        total += item.size
        if ".git" in PurePosixPath(item.name).parts:
            raise UserError(f"{asked}: holds {item.name}, by which git could run programs")
        if number > MOST_FILES or total > allowed:
            raise UserError(
                f"{asked}: has more than {MOST_FILES:,} files, or than {allowed:,} bytes when it is unpacked: if you "
                "trust it, unpack it yourself"
            )
        if printable(item.name) not in listed:
            raise UserError(f"{asked}: holds {printable(item.name)}, which {PROVENANCE} does not list: it was changed")
        yield item


def write_back(revision: RecordedRevision, checkout: Path) -> None:
    """Write the recorded parameters, pipeline and versions, and give DVC a cache of its own.

    Nothing is written through a link that the commit holds.
    """
    settings = checkout / ".dvc"
    for path in WRITTEN_BACK:
        if (revision.folder / path).is_file():
            target = checkout / Path(path).name
            target.unlink(missing_ok=True)
            shutil.copyfile(revision.folder / path, target)
    if not settings.is_dir():
        # -P: a module of the checkout is not taken for one of DVC's.
        output([sys.executable, "-P", "-m", "dvc", "init", "--quiet", "--force"], checkout)
    # Verified: DVC would else believe that a local remote's files are what their names say.
    cache, verified, local = cache_of_this_project(), "    verify = true\n", settings / "config.local"
    config = OWN_CACHE + (f"['remote \"{THIS_PROJECT}\"']\n    url = {cache}\n{verified}" if cache else "")
    local.unlink(missing_ok=True)
    local.write_text(config, encoding="utf-8")
    default, known = dvc_remotes(checkout)
    if default in known - {THIS_PROJECT}:
        local.write_text(f"{config}['remote \"{default}\"']\n{verified}", encoding="utf-8")


def dvc_remotes(checkout: Path) -> tuple[str | None, set[str]]:
    """The DVC remote that the checkout uses by default, and all that are known there."""
    try:
        with Repo(str(checkout)) as repo:
            return repo.config["core"].get("remote"), set(repo.config["remote"])
    except DvcException as error:
        raise UserError(f"{checkout}: DVC cannot work there: {first_line(error)}") from None


def cache_of_this_project() -> str | None:
    """DVC's cache of the project in which the command runs; None where there is none."""
    try:
        with Repo() as repo:
            return str(repo.cache.local_cache_dir)
    except DvcException:
        return None


def check_code(revision: RecordedRevision, checkout: Path) -> dict[str, list[str]]:
    """Compare all that no stage makes with the record; input that is missing or other -> the stages that read it.

    The checkout's dvc.lock is the recorded one then (`write_back`). Raises UserError that names the first file of code
    or parameter that differs: then anything may differ.
    """
    write_code(revision, checkout)
    inputs = {dep["path"] for entry in revision.stages.values() for dep in entry.get("deps", [])}
    wanted: dict[str, list[str]] = {}
    for stage, path, how in differing_inputs(revision, checkout):
        if path in inputs and Path(path).parent != FOLDER:
            wanted.setdefault(path, []).append(stage)
            continue
        left_out = next((left.reason for left in revision.provenance.left_out if left.path == path), None)
        raise UserError(
            f"{revision.asked}: {path} is {how}: it is not as stage {stage} read it"
            + (f"; the record left it out: {left_out}" if left_out else "")
            + "; the revision does not hold the code that made it"
        )
    return wanted


def write_code(revision: RecordedRevision, checkout: Path) -> None:
    """Write what the checkout's code is, for DVC to compare with what the stages ran with. Nothing of it is run.

    What the commit itself has in this folder is removed: it would be compared in place of the code.
    """
    if code_read(revision.stages):
        remove(inside(checkout, FOLDER.as_posix()))
        for path, code in stage_codes(checkout).items():
            atomic_write(inside(checkout, path.as_posix()), code.text)


def differing_inputs(revision: RecordedRevision, checkout: Path) -> list[tuple[str, str, str]]:
    """(stage, file or parameter, how it differs) of all inputs that no recorded stage makes, as DVC compares them."""
    status = dvc_status(checkout, list(revision.stages))
    found: list[tuple[str, str, str]] = []
    for stage in revision.stages:
        for change in status.get(stage, []):
            if isinstance(change, str):  # also "always changed", which no comparison can tell
                found += [(stage, "dvc.yaml", "modified")] if change == "changed command" else []
                continue
            for path, how in change.get("changed deps", {}).items():
                if isinstance(how, dict):  # a parameter file -> its keys
                    found += [(stage, f"{path}: {key}", str(each)) for key, each in how.items()]
                elif Path(path).parent == FOLDER:
                    found += [(stage, name, text) for name, text in changed_code(revision, checkout, path)]
                elif not revision.is_made(path):
                    found.append((stage, path, str(how)))
    return found


def dvc_status(checkout: Path, stages: list[str]) -> dict[str, Any]:
    """What differs from dvc.lock, by stage; a stage that is up to date is not in it."""
    try:
        # DVC names stages and files as seen from the current folder.
        with contextlib.chdir(checkout), Repo() as repo:
            result: dict[str, Any] = repo.status(targets=stages)
    except DvcException as error:
        raise UserError(f"{checkout}: {first_line(error)}") from None
    return result
