"""Checks that what DVC would restore from its cache is what was stored there; and brings results to the DVC remote.

DVC does not read a write-protected cache file again, so silent corruption of a disk would be restored as a result.
Entries that do not have the hash that is their name are dropped: then DVC pulls or computes them.

Only what is about to be restored is read: nothing for a stage that is up to date, or whose inputs the run-cache does
not know. So the cost follows the size of the restored outputs, which DVC copies anyway, not the size of the cache.
"""

import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.output import Output
from dvc.stage import PipelineStage, Stage

from flows.dvc_repo.internals import drop_damaged_files, locked_repo, open_repo, run_cache_entry
from flows.dvc_repo.lock_file import recorded_all
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


def drop_damaged(stage_name: str) -> list[str]:
    """Remove the damaged cache entries of what DVC would restore for a stage now; the paths of those outputs."""
    with locked_repo() as repo:
        damaged = {
            str(out)
            for stage in repo.stage.collect(stage_name)
            for out in to_restore(stage)
            if drop_damaged_files(out, _entries(out))
        }
    return sorted(damaged)


def to_restore(stage: PipelineStage) -> list[Output]:
    """The outputs that DVC would restore for the inputs as they are now: by dvc.lock, else by the run-cache.

    By dvc.lock all of them where one is missing, since DVC removes the others before it restores. By the run-cache
    always: DVC puts its results also in the place of equal ones.
    """
    if not stage.changed_stage() and (stage.frozen or not any(dep.status() for dep in stage.deps)):
        outs = [out for out in stage.outs if out.hash_info]
        return outs if any(not out.exists or out.changed_checksum() for out in outs) else []
    source = run_cache_entry(stage)
    return [out for out in source.outs if out.hash_info] if source else []


def check_results() -> None:
    """Let damaged cache files under the hash of a new result be dropped.

    DVC does not check what its cache has under a hash, and would replace the result with it.
    """
    save_outs = Stage.save_outs

    def checking_save_outs(stage: Stage, *arguments: object, **options: object) -> None:
        save_outs(stage, *arguments, **options)
        for out in stage.outs:
            if out.hash_info:
                names = [entry.value for _, _, entry in out.obj or ()] if out.hash_info.isdir else []
                drop_damaged_files(out, [out.hash_info.value, *names])

    Stage.save_outs = checking_save_outs


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


def _entries(out: Output) -> Iterator[str]:
    yield out.hash_info.value
    if out.hash_info.isdir:
        try:
            tree = out.get_obj()
        except (DvcException, OSError, ValueError):
            return
        yield from (entry.value for _, _, entry in tree or ())


def texts_at(commit: str, paths: Iterable[str]) -> dict[str, str]:
    """The text of each file at a commit, from git, DVC's cache or its remote; one that is not there is left out."""
    from dvc.api import DVCFileSystem  # here: it imports an implementation of git, and a run needs none

    files = DVCFileSystem(url=".", rev=commit)
    texts: dict[str, str] = {}
    for path in paths:
        with suppress(FileNotFoundError):  # `exists` would also say no where a remote does not answer
            texts[path] = files.read_text(path, encoding="utf-8", errors="replace")
    return texts
