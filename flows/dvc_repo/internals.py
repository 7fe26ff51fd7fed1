"""What is used of DVC beyond what it documents, as read in its version 3.67.1 (`dvc~=3.67.1` in pyproject.toml).

After an upgrade of DVC this file has to be compared with DVC's source; the rest of flows/ uses only names without an
underscore of Repo, Stage and Output.
"""

import errno
import io
import json
import logging
import os
import sqlite3
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dvc.lock
import dvc.stage.run
from dvc.data_cloud import DataCloud
from dvc.dependency.param import ParamsDependency
from dvc.exceptions import DvcException
from dvc.output import Output
from dvc.repo import Repo
from dvc.repo.reproduce import get_active_graph, plan_repro
from dvc.stage import PipelineStage, Stage
from dvc.stage.cache import _can_hash, _get_cache_hash, _get_stage_hash
from dvc.utils.serialize import _common as serialization
from dvc.utils.serialize import load_yaml

from stages.runtime.atomic import atomic_write, file_md5
from stages.runtime.entry import UserError

SQLITE_ERRORS = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_IOERR: errno.EIO}
"""SQLite's code -> the system's."""


def own_environment() -> dict[str, str]:
    """This process's environment, without what a git hook says of another repository."""
    named = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")
    return {name: value for name, value in os.environ.items() if name not in named}


@contextmanager
def open_repo() -> Iterator[Repo]:
    """DVC's repository; what takes its lock waits while another DVC command holds it.

    Raises UserError where DVC takes no value of a kind that a file of parameters has, such as a date.
    """
    try:
        with Repo(_wait_for_lock=True) as repo:
            yield repo
    except sqlite3.OperationalError as error:
        # DVC's table of hashes is SQLite's, which has errors of its own.
        number = SQLITE_ERRORS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), os.environ.get("DVC_SITE_CACHE_DIR")) from error
    except TypeError as error:
        if not str(error).startswith("Unsupported value of type"):
            raise
        raise UserError(f"dvc: {error}; write it in quotes") from None


@contextmanager
def locked_repo() -> Iterator[Repo]:
    """DVC's repository, its lock held."""
    with open_repo() as repo, repo.lock:
        yield repo


def forget_hashes(repo: Repo) -> dict[str, str]:
    """Empty DVC's table of the hashes of files, and return its entries by path; each file is then read again.

    DVC does not read a file whose inode, size and mtime are those of its entry, so a change that restores them goes
    unnoticed. What is read corrects the table for all later commands.
    """
    known = {path: repo.state.hashes[path] for path in repo.state.hashes}
    repo.state.hashes.clear()
    return known


def changed_unnoticed(repo: Repo, known: Mapping[str, str]) -> list[str]:
    """The files, relative to the root, that have another hash than the one that they were known by."""
    pairs = {path: (json.loads(old), json.loads(repo.state.hashes.get(path) or "{}")) for path, old in known.items()}
    wrong = (path for path, (old, new) in pairs.items() if old != new and old["checksum"] == new.get("checksum"))
    return sorted(os.path.relpath(path, repo.root_dir) for path in wrong)


def active_graph(repo: Repo) -> Any:
    """Edges lead from a stage to what it needs; a frozen stage needs nothing."""
    return get_active_graph(repo.index.graph)


def in_order_of_repro(stages: Collection[PipelineStage], graph: Any) -> list[PipelineStage]:
    """Stages, each after those that it needs, as `dvc repro` runs them.

    DVC itself takes less than half of the graph in a random order; here that is in the order of the graph too.
    """
    part = graph.copy()
    part.remove_nodes_from([stage for stage in graph if stage not in stages])
    return list(plan_repro(part))


def is_restorable(stage: PipelineStage) -> bool:
    """Whether DVC restores results of this stage at all; not where it has no dependencies."""
    try:
        return bool(_can_hash(stage))
    except FileNotFoundError:
        return True  # A dependency is missing, and is restored itself before this stage's turn comes.


def run_cache_entry(stage: PipelineStage) -> Stage | None:
    """What the run-cache holds for the inputs as they are now; None where nothing is known for them."""
    files = [dep for dep in stage.deps if not isinstance(dep, ParamsDependency)]
    if not all(dep.exists for dep in files) or not is_restorable(stage):
        return None
    stage.save_deps()
    _drop_damaged_runs(stage)
    entry = stage.repo.stage_cache._load(stage)
    if not entry:
        return None
    found: Stage = stage.repo.stage_cache._create_stage(entry, wdir=stage.wdir)
    drop_damaged_trees(found.outs)
    return found


def _drop_damaged_runs(stage: PipelineStage) -> None:
    """Remove the run-cache's entries for a stage's inputs whose content does not have the hash in their name."""
    folder = Path(stage.repo.stage_cache._get_cache_dir(_get_stage_hash(stage)))
    for file in folder.glob("*"):
        try:
            intact = _get_cache_hash(load_yaml(file)) == file.name
        except Exception:  # DVC and YAML fail over damaged files in many ways
            intact = False
        if not intact:
            file.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()  # DVC fails on an empty one


def lacks_outputs(name: str) -> bool:
    """Whether an output of a stage is not in the workspace."""
    with open_repo() as repo:
        return any(not out.exists for stage in repo.stage.collect(name) for out in stage.outs)


def drop_damaged_trees(outs: Iterable[Output]) -> None:
    """Remove lists of folders' files from DVC's cache that are damaged: DVC ends in a traceback over most of them."""
    for out in outs:
        if out.hash_info and out.hash_info.isdir:
            drop_damaged_files(out, [out.hash_info.value])


def drop_damaged_files(out: Output, names: Iterable[str]) -> bool:
    """Remove those of an output's files in DVC's cache, by their names there, that are damaged; whether any was."""
    damaged = False
    for name in names:
        path = Path(out.cache.oid_to_path(name))
        if path.is_file() and file_md5(path) != name.removesuffix(".dir"):
            path.unlink()
            damaged = True
    return damaged


def verify_downloads() -> None:
    """Have DVC compare what it fetches from a remote with its hash; it does so by default for some remotes only."""
    get_remote = DataCloud.get_remote

    def get_verified_remote(*arguments: object, **options: object) -> Any:
        remote = get_remote(*arguments, **options)
        remote.config["verify"] = True
        return remote

    DataCloud.get_remote = get_verified_remote


def poll_lock_every(seconds: float) -> None:
    """How often this process looks whether DVC's lock is free: DVC takes a sixth of its default timeout."""
    dvc.lock.DEFAULT_TIMEOUT = 6 * seconds


def dvc_prints_to(stream: object) -> None:
    """Let DVC's own messages go to `stream`, uncoloured."""
    for name in ("dvc", "dvc_objects", "dvc_data"):
        logging.getLogger(name).setLevel(logging.INFO)
        for handler in logging.getLogger(name).handlers:
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(stream)
                handler.formatter.log_colors = False  # type: ignore[union-attr]


def commands_get(output: int) -> None:
    """Let the commands of stages print to `output`, not where DVC prints.

    DVC has no setting for this: it passes to `subprocess.Popen` what `dvc.stage.run.prepare_kwargs` returns.
    """
    original = dvc.stage.run.prepare_kwargs

    def prepare_kwargs(*arguments: object, **options: object) -> dict[str, object]:
        redirected = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        return {**original(*arguments, **options), **redirected}

    dvc.stage.run.prepare_kwargs = prepare_kwargs


@contextmanager
def lock_file_written_whole(place: Callable[[Path, Any], object] | None = None) -> Iterator[None]:
    """While within, dvc.lock is replaced in one step: DVC writes it in place, where a signal leaves it cut off.

    `place` gets its path and the entries that are to be written, and may change their order.
    """
    original = serialization._dump_data

    def dump_whole(path: str, data: Any, dumper: Any, fs: Any = None, **options: Any) -> None:
        if place is not None:
            place(Path(path), data["stages"])
        text = io.StringIO()
        dumper(data, text, **options)
        atomic_write(Path(path), text.getvalue())

    serialization._dump_data = dump_whole
    try:
        yield
    finally:
        serialization._dump_data = original


def compare_inputs() -> None:
    """Let DVC record no stage whose dependencies changed after its command started.

    DVC reads them after the command has ended (treeverse/dvc #11058). A stage compares them itself until its end
    (stages/runtime/inputs.py); an edit between the two would be recorded, and its result restored for it.
    """
    prepare_kwargs, save_deps = dvc.stage.run.prepare_kwargs, Stage.save_deps
    before: dict[tuple[str, bool], Any] = {}

    def key(dep: Output) -> tuple[str, bool]:
        # A file may be a dependency as a whole, and some parameters in it another one.
        return str(dep), isinstance(dep, ParamsDependency)

    def noting_prepare_kwargs(stage: Stage, *arguments: object, **options: object) -> dict[str, object]:
        before.update((key(dep), dep.get_hash()) for dep in stage.deps)
        return dict(prepare_kwargs(stage, *arguments, **options))

    def comparing_save_deps(stage: Stage, *arguments: object, **options: object) -> None:
        save_deps(stage, *arguments, **options)
        changed = [str(dep) for dep in stage.deps if before.get(key(dep), dep.hash_info) != dep.hash_info]
        before.clear()
        if changed:
            raise DvcException(
                f"{stage.addressing}: inputs changed while it ran: {', '.join(changed[:5])}; its result is not "
                "recorded, because it belongs to neither the old nor the new inputs: run the same command again"
            )

    dvc.stage.run.prepare_kwargs, Stage.save_deps = noting_prepare_kwargs, comparing_save_deps
