"""What is used of DVC beyond what it documents, as read in its version 3.67.1 (`dvc~=3.67.1` in pyproject.toml).

After an upgrade of DVC this file has to be compared with DVC's source; the rest of flows/ uses only names without an
underscore of Repo, Stage and Output.
"""

import errno
import os
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from dvc.dependency.param import ParamsDependency
from dvc.repo import Repo
from dvc.repo.reproduce import get_active_graph, plan_repro
from dvc.stage import PipelineStage, Stage
from dvc.stage.cache import _can_hash

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
    entry = stage.repo.stage_cache._load(stage)
    if not entry:
        return None
    found: Stage = stage.repo.stage_cache._create_stage(entry, wdir=stage.wdir)
    return found
