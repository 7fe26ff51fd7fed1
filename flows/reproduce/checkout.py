"""The code and the data of a revision -> `WORK/checkout`.

The archive of the code is other people's: unpacked within bounds, and nowhere but in one folder. Data comes by
`dvc pull` from this project's cache and then from the checkout's default remote, or the user puts it there. If all that
the computed stages read came, the data stages keep their recorded entries in dvc.lock, and `dvc repro --allow-missing`
skips them; if not, all of them are computed.
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

CHECKOUT_FOLDER = "checkout"

RECORDED_SETTINGS = (RECORDED_PARAMS, RECORDED_PIPELINE, RECORDED_REQUIREMENTS)
"""Recorded files that the stages read, or that say what they are."""

OWN_CACHE = "[cache]\n    dir = cache\n"
"""DVC's configuration: a shared cache might hold the very results that are to be computed again."""

THIS_PROJECT = "this-project"
"""The name, in the checkout, of the DVC remote that is the cache of the project in which the command runs."""

NOT_UNPACKED = (OSError, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)
"""Exceptions raised for a damaged or unsupported archive."""

MAX_FILES = 100_000

FREE_BYTES, MOST_RATIO = 64 << 20, 50
"""An archive may unpack to the first plus the second times its own size: weights hardly shrink, text to a tenth."""


def check_out_revision(revision: RecordedRevision) -> Path:
    """The project's folder in the checkout, which is made once, with the recorded code and settings.

    Raises UserError if the code is not what the stages ran with: nothing of it was run.
    """
    checkout = revision.work / CHECKOUT_FOLDER
    if not checkout.exists():
        with atomic_folder(checkout) as partial:
            output(["git", "init", "--quiet"], partial)
            unpack(revision.folder / SOURCE_ARCHIVE, partial, f"{revision.asked}: {SOURCE_ARCHIVE}")
            for path in RECORDED_SETTINGS:
                shutil.copyfile(revision.folder / path, partial / Path(path).name)
            check_recorded_code(revision, partial)
            configure_dvc(partial)
    return checkout


def unpack(archive: Path, folder: Path, asked: str) -> None:
    """Unpack a .tar.gz of files into a folder; only who may execute a file is kept of its rights.

    Raises UserError if it is damaged, or holds more than it may.
    """
    try:
        with tarfile.open(archive) as packed:
            for item in bounded(packed, archive, asked):
                path, content = folder / item.name, packed.extractfile(item)
                assert content is not None  # it is a file
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as file:
                    shutil.copyfileobj(content, file)
                path.chmod(0o755 if item.mode & 0o100 else 0o644)
    except NOT_UNPACKED as error:
        raise UserError(f"{asked}: cannot be unpacked as a .tar.gz ({first_line(error)})") from None


def bounded(items: tarfile.TarFile, archive: Path, asked: str) -> Iterator[tarfile.TarInfo]:
    """The members in their order, until they are too many or too large together, or one is not a file of code."""
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
    """Raise UserError that names the first file of code or library that is not as its stage ran with."""
    recorded = {path: code_in(revision.folder / revision_path(path)) for path in code_files(revision.stages)}
    for change in code_changes(recorded, checkout):
        raise UserError(f"{revision.asked}: {change}: the revision does not hold the code that made it")


def configure_dvc(checkout: Path) -> None:
    """Give DVC a cache of its own, and as a remote the cache of the project in which the command runs."""
    settings = checkout / ".dvc"
    settings.mkdir(exist_ok=True)
    # Verified: DVC would else believe that a local remote's files are what their names say.
    cache = project_cache() if Path(".dvc").is_dir() else None
    verified, local = "    verify = true\n", settings / "config.local"
    config = OWN_CACHE + (f"['remote \"{THIS_PROJECT}\"']\n    url = {cache}\n{verified}" if cache else "")
    local.write_text(config, encoding="utf-8")
    default, known = dvc_remotes(checkout)
    if default in known - {THIS_PROJECT}:
        local.write_text(f"{config}['remote \"{default}\"']\n{verified}", encoding="utf-8")


def dvc_remotes(checkout: Path) -> tuple[str | None, set[str]]:
    """The DVC remote that the checkout uses by default, and all that are known there."""
    with repository(checkout) as repo:
        return repo.config["core"].get("remote"), set(repo.config["remote"])


@contextlib.contextmanager
def repository(checkout: Path) -> Iterator[Repo]:
    """DVC's repository in the checkout, as the current folder: DVC names stages and files as seen from there."""
    try:
        with contextlib.chdir(checkout), Repo() as repo:
            yield repo
    except DvcException as error:
        raise UserError(f"{checkout}: DVC cannot work there: {first_line(error)}") from None


def bring_data(
    revision: RecordedRevision, checkout: Path, computed: Collection[str], *, from_scratch: bool
) -> list[str]:
    """Bring what the `computed` stages read, and trim dvc.lock to the data stages that came; the names of these.

    Raises UserError that names an input that is needed and came from nowhere.
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
        if not is_outside(path):  # a stage that read another content would run again
            remove(checkout / path)
    keep_recorded(revision, checkout, restored)
    return restored


def pulled_outputs(revision: RecordedRevision, checkout: Path, computed: Collection[str]) -> bool:
    """Whether all outputs of the data stages that the computed stages read are in the checkout, after a `dvc pull`."""
    data_stages = revision.data_stages
    read = {
        dep["path"]
        for stage in computed
        if stage not in data_stages
        for dep in revision.stages[stage].get("deps", [])
        if revision.maker_of(dep["path"]) in data_stages
    }
    # Reports are in no cache of DVC, but in the revision.
    for stage in data_stages:
        for out in revision.stages[stage].get("outs", []):
            recorded, target = revision.folder / revision_path(out["path"]), checkout / out["path"]
            if recorded.is_file() and file_md5(recorded) == hash_of(out):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(recorded, target)
    lacking = [path for path in read if not (checkout / path).exists()]
    if lacking:
        pull(checkout, lacking)
    return all((checkout / path).exists() for path in read)


def wrong_inputs(revision: RecordedRevision, checkout: Path) -> dict[str, list[str]]:
    """Input that no stage makes and that is missing or not as recorded -> the stages that read it."""
    with repository(checkout) as repo:
        status = repo.status(targets=list(revision.stages))
    wrong: dict[str, list[str]] = {}
    for stage, change in ((stage, change) for stage, changes in status.items() for change in changes):
        for path, how in change.get("changed deps", {}).items() if isinstance(change, dict) else ():
            of_a_stage = Path(path).parent == FOLDER or revision.is_made(path)
            if not of_a_stage and isinstance(how, str):  # else parameters
                wrong.setdefault(path, []).append(stage)
    return wrong


def remove(place: Path) -> None:
    """Remove a file or a folder."""
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)


def keep_recorded(revision: RecordedRevision, checkout: Path, stages: list[str]) -> None:
    """Trim the checkout's dvc.lock to these stages: all others count as never run."""
    lock = checkout / LOCK_FILE
    if not stages:
        lock.unlink()
        return
    kept = {"schema": "2.0", "stages": {stage: revision.stages[stage] for stage in stages}}
    lock.write_text(write_yaml(kept), encoding="utf-8")


def pull(checkout: Path, targets: Collection[str]) -> None:
    """`dvc pull` of files from this project's cache and the default remote, each checked by its hash."""
    default, known = dvc_remotes(checkout)
    for remote in [name for name in (THIS_PROJECT, default) if name in known]:
        # -P: a module of the checkout is not taken for one of DVC's.
        command = [sys.executable, "-P", "-m", "dvc", "pull", "--allow-missing", "--remote", str(remote), *targets]
        done = run_quietly(command, checkout)
        if done.returncode and (said := done.stderr.strip()):  # missing outputs are computed, or named
            print(f"note: dvc pull from {remote}: {without_credentials(said.splitlines()[-1])}", flush=True)
