"""DVC's cache and remotes."""

import shutil
import tempfile
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from flows.dvc_repo.internals import open_repo
from flows.dvc_repo.lock_file import recorded_all
from stages.runtime.atomic import file_md5
from stages.runtime.entry import UnavailableError, UserError, first_line


def require_writable_cache() -> Path:
    """DVC's cache folder. Raises UserError where nothing can be written there: DVC would say so after hours."""
    with open_repo() as repo:
        folder = Path(repo.cache.local_cache_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise UserError(
            f"DVC's cache cannot be written ({first_line(error)}): no result could be stored; nothing was started. "
            "`dvc cache dir --local FOLDER` names another one"
        ) from None


def low_space(stages: Iterable[str]) -> list[str]:
    """A warning where DVC's cache has less room than the outputs of these stages took the last time."""
    folder = require_writable_cache()
    outs = [out for entry in recorded_all(stages).values() for out in entry.get("outs", [])]
    needed, free = sum(out.get("size", 0) for out in outs), shutil.disk_usage(folder).free
    if free >= needed:
        return []
    return [
        f"warning: {folder} has {free / 1e6:,.0f} MB left; what may run stored {needed / 1e6:,.0f} MB the last time"
    ]


def drop_damaged() -> list[Path]:
    """Read the whole cache, and remove each entry whose content does not have the hash in its name.

    DVC trusts an entry that is write-protected, so a disk's silent corruption would be restored as a result.
    """
    with open_repo() as repo:
        entries = Path(repo.cache.local_cache_dir, "files", "md5").glob("??/*")
    damaged = [path for path in entries if file_md5(path) != path.parent.name + path.name.removesuffix(".dir")]
    for path in damaged:
        path.unlink()
    return damaged


def push_results(targets: Collection[str] = ()) -> None:
    """Bring results and the run-cache to the DVC remote, so that any clone can restore them.

    Those of `targets` and of the stages before them; without targets all.

    `dvc push --run-cache` leaves out metrics that git tracks (read in 3.67.1), without which DVC restores nothing of
    their stages. Raises UnavailableError.
    """
    with open_repo() as repo:
        stages = {stage for target in targets or (None,) for stage in repo.stage.collect(target, with_deps=True)}
        left_out = {out.hash_info for stage in stages for out in stage.outs if out.hash_info and not out.use_cache}
        try:
            repo.push(targets=list(targets) or None, with_deps=True, run_cache=True)
            failed = repo.cloud.push(left_out).failed
        except Exception as error:  # each kind of remote has errors of its own
            raise UnavailableError(f"dvc push: {str(error) or type(error).__name__}") from error
        if failed:
            raise UnavailableError(f"dvc push: {len(failed)} files did not reach the DVC remote")


def texts_at(commit: str, paths: Iterable[str]) -> dict[str, str]:
    """The text of each file at a commit, from git, DVC's cache or its remote; one that is not there is left out."""
    from dvc.api import DVCFileSystem  # here: it imports an implementation of git, and a run needs none

    files = DVCFileSystem(url=".", rev=commit)
    texts: dict[str, str] = {}
    for path in paths:
        with suppress(FileNotFoundError):  # `exists` would also say no where a remote does not answer
            texts[path] = files.read_text(path, encoding="utf-8", errors="replace")
    return texts
