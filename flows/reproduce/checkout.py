"""The code and the data of a revision -> `WORK/checkout`.

The archive of the code is not trusted: it is unpacked within limits, and only into one folder. `dvc pull` gets the data
from this project's cache, then from the checkout's default remote; or the user copies it. If it gets everything that
the computed stages read, the data stages keep their recorded entries in dvc.lock, and `dvc repro --allow-missing` skips
them; otherwise all of them are computed.
"""

import contextlib
import lzma
import shutil
import sys
import tarfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from dvc.exceptions import DvcException
from dvc.repo import Repo

from flows.dvc_repo import project_cache
from flows.reproduce.commands import output, run_quietly
from flows.reproduce.revision import RecordedRevision
from stages.formats.revision.provenance import (
    RECORDED_LOCK,
    RECORDED_PARAMS,
    RECORDED_PIPELINE,
    RECORDED_REQUIREMENTS,
    SOURCE_ARCHIVE,
    code_files,
    hash_of,
    is_outside,
    revision_path,
)
from stages.runtime.atomic import atomic_folder, file_md5
from stages.runtime.credentials import without_credentials
from stages.runtime.errors import STATE_DIR, UserError, first_line
from stages.runtime.preflight import LOCK_FILE
from stages.runtime.section import write_yaml
from stages.runtime.stage_code import FOLDER, code_changes, code_in

THIS_PROJECT = "this-project"
"""The name, in the checkout, of the DVC remote that is this project's cache."""

NOT_UNPACKED = (OSError, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)
"""Exceptions raised for a damaged or unsupported archive."""

MAX_FILES = 100_000

FREE_BYTES, MOST_RATIO = 64 << 20, 50
"""An archive may unpack to the first number of bytes plus its own size times the second."""


def check_out_revision(revision: RecordedRevision) -> Path:
    """The project's folder in the checkout, created if it is missing, with the recorded code and settings.

    Raises UserError, without running any of the code, if it is not the code that the stages ran with.
    """
    checkout = revision.work / "checkout"
    if not checkout.exists():
        with atomic_folder(checkout) as partial:
            output(["git", "init", "--quiet"], partial)
            unpack(revision.folder / SOURCE_ARCHIVE, partial, f"{revision.asked}: {SOURCE_ARCHIVE}")
            for path in (RECORDED_PARAMS, RECORDED_PIPELINE, RECORDED_REQUIREMENTS):
                shutil.copyfile(revision.folder / path, partial / Path(path).name)
            check_recorded_code(revision, partial)
            configure_dvc(partial)
    return checkout


def unpack(archive: Path, folder: Path, asked: str) -> None:
    """Unpack a .tar.gz of files into a folder, without modes except the executable bit.

    Raises UserError if it is damaged or exceeds the limits.
    """
    try:
        with tarfile.open(archive) as packed:
            for item in bounded(packed, archive, asked):
                path, content = folder / item.name, packed.extractfile(item)
                assert content is not None  # `bounded` yields only files
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as file:
                    shutil.copyfileobj(content, file)
                path.chmod(0o755 if item.mode & 0o100 else 0o644)
    except NOT_UNPACKED as error:
        raise UserError(f"{asked}: cannot be unpacked as a .tar.gz ({first_line(error)})") from None


def bounded(items: tarfile.TarFile, archive: Path, asked: str) -> Iterator[tarfile.TarInfo]:
    """Yield the members. Raises UserError if they are too many or too large, or one is not a file of code."""
    allowed, total = FREE_BYTES + MOST_RATIO * archive.stat().st_size, 0
    for number, item in enumerate(items, 1):
        total += item.size
        path = PurePosixPath(item.name)
        made = path.parts[:1] in ((".dvc",), (STATE_DIR.name,)) or path.is_relative_to(FOLDER)
        outside = path.is_absolute() or ".." in path.parts
        if outside or ".git" in path.parts or (made and item.name != ".dvc/config") or not item.isfile():
            raise UserError(f"{asked}: holds {item.name}, which is neither code nor data")
        if number > MAX_FILES or total > allowed:
            raise UserError(
                f"{asked}: has more than {MAX_FILES:,} files or {allowed:,} bytes unpacked; if you trust it, unpack it "
                "yourself and name the folder"
            )
        yield item


def check_recorded_code(revision: RecordedRevision, checkout: Path) -> None:
    """Raise UserError that names the first file of code or library that differs from what its stage ran with."""
    recorded = {path: code_in(revision.folder / revision_path(path)) for path in code_files(revision.stages)}
    for change in code_changes(recorded, checkout):
        raise UserError(f"{revision.asked}: {change}: the revision does not hold the code that made it")


def configure_dvc(checkout: Path) -> None:
    """Give DVC a separate cache, which lacks the results to compute, and this project's cache as a remote."""
    settings = checkout / ".dvc"
    settings.mkdir(exist_ok=True)
    cache = project_cache() if Path(".dvc").is_dir() else None
    # Otherwise DVC trusts the names of a local remote's files.
    verified, local = "    verify = true\n", settings / "config.local"
    config = "[cache]\n    dir = cache\n"
    config += f"['remote \"{THIS_PROJECT}\"']\n    url = {cache}\n{verified}" if cache else ""
    local.write_text(config, encoding="utf-8")
    default, known = dvc_remotes(checkout)
    if default in known - {THIS_PROJECT}:
        local.write_text(f"{config}['remote \"{default}\"']\n{verified}", encoding="utf-8")


def dvc_remotes(checkout: Path) -> tuple[str | None, set[str]]:
    """The checkout's default DVC remote, and all its remotes."""
    with repository(checkout) as repo:
        return repo.config["core"].get("remote"), set(repo.config["remote"])


@contextlib.contextmanager
def repository(checkout: Path) -> Iterator[Repo]:
    """DVC's repository in the checkout, which is the current folder meanwhile, as DVC's paths are relative to that."""
    try:
        with contextlib.chdir(checkout), Repo() as repo:
            yield repo
    except DvcException as error:
        raise UserError(f"{checkout}: DVC cannot work there: {first_line(error)}") from None


def bring_data(
    revision: RecordedRevision, checkout: Path, computed: Collection[str], *, from_scratch: bool
) -> list[str]:
    """Get the inputs of the `computed` stages, and trim dvc.lock to the data stages that were restored.

    Returns the names of these. Raises UserError if a needed input is not available.
    """
    shutil.copyfile(revision.folder / RECORDED_LOCK, checkout / LOCK_FILE)
    data_stages = revision.data_stages
    restored = [] if from_scratch or not pulled_outputs(revision, checkout, computed) else data_stages
    run = {*computed, *data_stages} - {*restored}
    wrong = wrong_inputs(revision, checkout)
    needed = [path for path, readers in wrong.items() if run & {*readers}]
    if needed:
        pull(checkout, needed)
    for path, readers in wrong_inputs(revision, checkout).items():
        if path in needed:
            recorded = next(dep for dep in revision.stages[readers[0]]["deps"] if dep["path"] == path)
            raise UserError(
                f"{revision.asked}: {path}: stage {readers[0]} read it (md5 {hash_of(recorded)}), and neither the "
                f"revision nor a DVC remote has it; put it at {checkout / path} and run the same command again"
            )
        if not is_outside(path):  # with other content its readers would run again
            remove(checkout / path)
    keep_recorded(revision, checkout, restored)
    return restored


def pulled_outputs(revision: RecordedRevision, checkout: Path, computed: Collection[str]) -> bool:
    """`dvc pull` the data stages' outputs that the computed stages read. Returns True if all are in the checkout."""
    data_stages = revision.data_stages
    read = {
        dep["path"]
        for stage in computed
        if stage not in data_stages
        for dep in revision.stages[stage].get("deps", [])
        if revision.maker_of(dep["path"]) in data_stages
    }
    # The revision has reports, which are not in DVC's cache.
    for stage in data_stages:
        for out in revision.stages[stage].get("outs", []):
            recorded, target = revision.folder / revision_path(out["path"]), checkout / out["path"]
            if recorded.is_file() and file_md5(recorded) == hash_of(out):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(recorded, target)
    if missing := [path for path in read if not (checkout / path).exists()]:
        pull(checkout, missing)
    return all((checkout / path).exists() for path in read)


def wrong_inputs(revision: RecordedRevision, checkout: Path) -> dict[str, list[str]]:
    """Input that no stage makes, and that is missing or differs from its record -> the stages that read it."""
    with repository(checkout) as repo:
        status = repo.status(targets=list(revision.stages))
    wrong: dict[str, list[str]] = {}
    for stage, change in ((stage, change) for stage, changes in status.items() for change in changes):
        for path, how in change.get("changed deps", {}).items() if isinstance(change, dict) else ():
            of_a_stage = Path(path).parent == FOLDER or revision.is_made(path)
            if not of_a_stage and isinstance(how, str):  # otherwise parameters
                wrong.setdefault(path, []).append(stage)
    return wrong


def remove(path: Path) -> None:
    """Remove a file or a folder."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def keep_recorded(revision: RecordedRevision, checkout: Path, stages: list[str]) -> None:
    """Trim the checkout's dvc.lock to these stages, so that others count as never run."""
    lock = checkout / LOCK_FILE
    if not stages:
        lock.unlink()
        return
    kept = {"schema": "2.0", "stages": {stage: revision.stages[stage] for stage in stages}}
    lock.write_text(write_yaml(kept), encoding="utf-8")


def pull(checkout: Path, targets: Collection[str]) -> None:
    """`dvc pull` files from this project's cache and the default remote, and check their hashes."""
    default, known = dvc_remotes(checkout)
    for remote in [name for name in (THIS_PROJECT, default) if name in known]:
        # -P: modules of the checkout do not replace DVC's.
        command = [sys.executable, "-P", "-m", "dvc", "pull", "--allow-missing", "--remote", str(remote), *targets]
        done = run_quietly(command, checkout)
        if done.returncode and (message := done.stderr.strip()):  # missing outputs are computed or reported later
            print(f"note: dvc pull from {remote}: {without_credentials(message.splitlines()[-1])}", flush=True)
