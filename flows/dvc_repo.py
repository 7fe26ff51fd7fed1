"""Calls of git, and of DVC's repository: its graph, dvc.lock, cache and remotes.

This module uses undocumented parts of DVC, as read in version 3.67.1 (`dvc~=3.67.1` in pyproject.toml). After an
upgrade of DVC, compare it with DVC's source. The rest of flows/ uses only public names of Repo, Stage and Output.

DVC writes dvc.lock and `.dvc/tmp/rwlock`, its table of which process uses which path, in place, so a kill can leave
them empty or truncated. DVC repairs a truncated dvc.lock that is still YAML, and drops entries of dead processes; this
module removes the other damaged files. Without dvc.lock every stage counts as never run, and the run-cache restores its
result; without the table nothing is lost.
"""

import errno
import json
import logging
import os
import re
import sqlite3
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

from dvc.config import ConfigError
from dvc.dependency.param import ParamsDependency
from dvc.exceptions import DownloadError, DvcException, NotDvcRepoError
from dvc.fs import RemoteMissingDepsError
from dvc.lock import make_lock
from dvc.repo import Repo, lock_repo
from dvc.repo.reproduce import plan_repro
from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK
from dvc.scm import SCMError
from dvc.stage import PipelineStage, Stage
from dvc.stage.cache import RunCacheNotSupported, _can_hash
from dvc.stage.serialize import to_single_stage_lockfile

from stages.runtime.atomic import file_md5
from stages.runtime.errors import UnavailableError, UserError, first_line, is_access_denied
from stages.runtime.preflight import LOCK_FILE, LOCK_REMEDY

DVC_TMP = Path(".dvc/tmp")


def _found() -> Repo:
    try:
        return Repo(_wait_for_lock=True)
    except NotDvcRepoError as error:
        raise UserError(f"dvc: {error}; run this from the project's root") from None
    except SCMError as error:
        raise UserError(f"dvc: {error}; clone the project, or `git init` here and commit its files") from None


@contextmanager
def open_repo() -> Iterator[Repo]:
    """Open DVC's repository; calls that need its lock wait while another DVC command holds it.

    Raises UserError outside of a project or a git repository, and if a parameter has a type that DVC does not support,
    such as a date.
    """
    try:
        with _found() as repo:
            yield repo
    except sqlite3.OperationalError as error:
        # DVC's table of hashes is in SQLite, which has its own error code for a full disk.
        if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_FULL:
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.environ.get("DVC_SITE_CACHE_DIR")) from error
    except TypeError as error:
        if not str(error).startswith("Unsupported value of type"):
            raise
        raise UserError(f"dvc: {error}; quote it") from None


def in_order_of_repro(stages: Collection[PipelineStage], graph: Any) -> list[PipelineStage]:
    """Sort stages topologically, as `dvc repro` runs them, but also a small part of the graph in a fixed order."""
    part = graph.copy()
    part.remove_nodes_from([stage for stage in graph if stage not in stages])
    return list(plan_repro(part))


def is_restorable(stage: PipelineStage) -> bool:
    """True if DVC can restore results of this stage, which must have dependencies."""
    try:
        return bool(_can_hash(stage))
    except FileNotFoundError:
        return True  # a missing dependency is restored before this stage


def run_cache_entry(stage: PipelineStage) -> Stage | None:
    """The result for the current inputs in dvc.lock or the run-cache; None if neither has one."""
    files = [dep for dep in stage.deps if not isinstance(dep, ParamsDependency)]
    if not all(dep.exists for dep in files) or not is_restorable(stage):
        return None
    cache = stage.repo.stage_cache
    if not stage.changed_stage() and stage.deps_cached() and all(out.hash_info for out in stage.outs):
        entry = to_single_stage_lockfile(stage)
    else:
        stage.save_deps()
        entry = cache._load(stage)
    result: Stage | None = cache._create_stage(entry, wdir=stage.wdir) if entry else None
    return result


@contextmanager
def asking_remote(command: str) -> Iterator[None]:
    """Raise UserError if the DVC remote is not set up or refuses access, UnavailableError if it does not answer."""
    logged = BufferingHandler(1000)  # DVC logs why each file failed, but raises only how many did
    logging.getLogger("dvc_data").addHandler(logged)
    try:
        yield
    except UserError:
        raise
    except (ConfigError, RemoteMissingDepsError, PermissionError, ImportError) as error:
        raise UserError(f"dvc {command}: {error}; correct the DVC remote (`dvc remote list`)") from error
    except Exception as error:  # remotes raise different exceptions
        causes = (error, error.__cause__, *(record.exc_info[1] for record in logged.buffer if record.exc_info))
        if refused := next(filter(is_access_denied, causes), None):
            raise UserError(f"dvc {command}: access denied ({refused}); set the DVC remote's credentials") from error
        raise UnavailableError(f"dvc {command}: {str(error) or type(error).__name__}") from error
    finally:
        logging.getLogger("dvc_data").removeHandler(logged)


def fetch_run_cache() -> None:
    """Fetch the run-cache, which maps inputs to results, from the DVC remote. Raises as `asking_remote`."""
    with asking_remote("pull"), open_repo() as repo, suppress(RunCacheNotSupported):
        repo.cloud.get_remote(command="pull")
        repo.stage_cache.pull(None)


def fetch_result(name: str) -> list[str]:
    """Fetch the result of a stage for its current inputs, or the data of a .dvc file, from the DVC remote.

    Returns the objects of a result that the remote lacks or has damaged; DVC then computes the stage. Raises as
    `asking_remote`, and UserError if data of a .dvc file is missing.
    """
    with asking_remote("pull"), open_repo() as repo, lock_repo(repo):
        for remote in repo.config["remote"].values():
            remote["verify"] = True  # otherwise DVC trusts the names of most remotes' objects
        (stage,) = repo.stage.collect(name)
        if isinstance(stage, PipelineStage):
            if not (entry := run_cache_entry(stage)):
                return []
            _keep_present(entry)
            return _fetched(entry, entry.get_used_objs(force=True))
        if not all(out.exists for out in stage.outs):
            with suppress(DownloadError):
                repo.fetch([name])
            if missing := _fetched(stage, {}):
                remote = repo.cloud.get_remote_odb()
                try:  # DVC uses fsspec's `exists`, which is False if the server refuses access
                    remote.fs.info(remote.oid_to_path(stage.outs[0].hash_info.value))
                except FileNotFoundError as error:
                    if is_access_denied(error.__cause__):
                        raise
                raise UserError(f"{name}: the DVC remote does not have {', '.join(missing)}: `dvc push` it there")
            stage.checkout()
    return []


def _keep_present(stage: Stage) -> None:
    """Add outputs in the workspace, such as metrics from git, to DVC's cache, as `dvc push` omits them."""
    with stage.repo.stage_cache._cache_type_copy():
        for out in stage.outs:
            if out.changed_cache() and out.exists and not out.changed_checksum():
                out.commit()


def _fetched(stage: Stage, objects: Mapping[Any, Collection[Any]]) -> list[str]:
    """Fetch objects. Returns, by path and hash, those of the stage's outputs that DVC's cache still lacks."""
    needed = {out.hash_info.value: str(out) for out in stage.outs}
    for odb, infos in objects.items():
        stage.repo.cloud.pull(infos, odb=odb)
        needed |= {info.value: info.obj_name for info in infos}
    if not any(out.changed_cache() for out in stage.outs):
        return []
    return [f"{path} ({md5})" for md5, path in needed.items() if not stage.repo.cache.local.exists(md5)]


def git(folder: Path, *arguments: str, check: bool = True, error: type[UserError] = UserError) -> str:
    """Run git and return its output. If it fails, raise `error`, or return an empty text without `check`."""
    command = ["git", "-c", "core.quotePath=off", *arguments]  # otherwise git escapes paths that are not ASCII
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode and check:
        raise error(f"git {arguments[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return "" if done.returncode else done.stdout.strip("\n")


def check_out(folder: Path, commit: str, project: Path | None = None) -> None:
    """Check out a commit, with its submodules, in a repository of ours; submodules come from `project` if it is given.

    Raises UnavailableError if a submodule cannot be fetched.
    """
    git(folder, "checkout", "--quiet", "--force", "--detach", commit)
    if not (folder / ".gitmodules").exists():
        return
    paths = git(folder, "config", "--file", ".gitmodules", "--get-regexp", r"\.path$").splitlines() if project else []
    for key, path in (line.split(" ", 1) for line in paths):
        git(folder, "config", f"{key.removesuffix('path')}url", f"{project}/{path}")
    local = ["-c", "protocol.file.allow=always"] if project else []
    git(folder, *local, "submodule", "--quiet", "update", "--init", "--recursive", "--force", error=UnavailableError)


def give_identity(folder: Path) -> None:
    """Set a committer in a repository of ours if git has no identity on this machine."""
    if not git(folder, "config", "user.email", check=False):
        git(folder, "config", "user.name", "parrotflow")
        git(folder, "config", "user.email", "parrotflow@localhost")


def experiment_ref(baseline: str, name: str) -> str:
    """The git reference of a DVC experiment that was started from the commit `baseline`."""
    return f"refs/exps/{baseline[:2]}/{baseline[2:]}/{name}"


def has_commit(commit: str, folder: Path = Path()) -> bool:
    """True if a folder's repository has a commit."""
    return bool(git(folder, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", check=False))


def remedy(error: DvcException) -> str:
    """The remedy if DVC cannot read a dvc.lock; empty for any other error."""
    return f"; {LOCK_REMEDY}" if Path(getattr(error, "path", "")).name == LOCK_FILE.name else ""


def project_cache() -> str:
    """The folder of the project's cache."""
    with open_repo() as repo:
        return str(repo.cache.local_cache_dir)


def default_remote() -> str | None:
    """The name of the project's default DVC remote; None if it has none."""
    with open_repo() as repo:
        name: str | None = repo.config["core"].get("remote")
    return name


def repair_after_kill(folder: Path = Path()) -> list[str]:
    """Remove an empty dvc.lock and a lock table that is not JSON. Returns a line for each removed file."""
    repaired = []
    # With DVC's locks held, because a live process may be writing the file.
    if _removed(folder, LOCK_FILE, "lock", is_empty):
        repaired.append("removed dvc.lock, which a kill had emptied; results in DVC's cache are restored")
    if _removed(folder, DVC_TMP / RWLOCK_FILE, RWLOCK_LOCK, is_torn):
        repaired.append("removed DVC's lock table, which a kill or power failure had truncated; nothing is lost")
    return repaired


def _removed(folder: Path, name: Path, guard: str, is_damaged: Any) -> bool:
    file, tmp = folder / name, folder / DVC_TMP
    if not is_damaged(file):
        return False
    tmp.mkdir(parents=True, exist_ok=True)
    with make_lock(str(tmp / guard), tmp_dir=str(tmp), wait=True):
        damaged: bool = is_damaged(file)
        if damaged:
            file.unlink()
    return damaged


def is_empty(file: Path) -> bool:
    """True if a file exists and is empty."""
    return file.is_file() and not file.stat().st_size


def is_torn(table: Path) -> bool:
    """True if DVC's lock table is not valid JSON."""
    try:
        json.loads(table.read_bytes())
    except FileNotFoundError:
        return False
    except ValueError:
        return True
    return False


def require_writable_cache() -> None:
    """Raise UserError if DVC's cache is not writable; DVC would fail only after hours."""
    folder = Path(project_cache())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        raise UserError(
            f"DVC's cache is not writable ({first_line(error)}), so nothing was started; fix its permissions, or "
            "choose another one with `dvc cache dir --local FOLDER`"
        ) from None


def drop_damaged() -> list[Path]:
    """Read the whole cache, remove each entry whose content does not match its hash, and return these.

    DVC trusts write-protected entries, so it would restore corrupted data as a result.
    """
    entries = Path(project_cache(), "files", "md5").glob("??/*")
    # Other names are of files that DVC is writing.
    named = [path for path in entries if re.fullmatch(r"[0-9a-f]{30}(\.dir)?", path.name)]
    damaged = [path for path in named if file_md5(path) != path.parent.name + path.name.removesuffix(".dir")]
    for path in damaged:
        path.unlink()
    return damaged


def push_results(targets: Collection[str] = ()) -> None:
    """Push the results of `targets` and the stages before them (default: of all), and the run-cache, to the DVC remote.

    `dvc push --run-cache` omits metrics that git tracks (in 3.67.1), without which DVC cannot restore their stages.
    Raises as `asking_remote`.
    """
    with asking_remote("push"), open_repo() as repo:
        stages = {stage for target in targets or (None,) for stage in repo.stage.collect(target, with_deps=True)}
        uncached = [out for stage in stages for out in stage.outs if out.hash_info and not out.use_cache]
        left_out = {out.hash_info for out in uncached}
        for folder in (out.get_obj() for out in uncached if out.is_dir_checksum):
            left_out |= {info for _, _, info in folder or ()}  # DVC would push only the list of its files
        repo.push(targets=list(targets) or None, with_deps=True, run_cache=True)
        if failed := repo.cloud.push(left_out).failed:
            raise UnavailableError(f"dvc push: {len(failed)} files could not be uploaded to the DVC remote")


def texts_at(commit: str, paths: Iterable[str]) -> dict[str, str]:
    """The text of each file at a commit, from git, DVC's cache or its remote; missing files are skipped."""
    from dvc.api import DVCFileSystem  # slow, because it imports an implementation of git

    files = DVCFileSystem(url=".", rev=commit)
    texts: dict[str, str] = {}
    for path in paths:
        with suppress(FileNotFoundError):  # `exists` is also False if a remote does not answer
            texts[path] = files.read_text(path, encoding="utf-8", errors="replace")
    return texts
