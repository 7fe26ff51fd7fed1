"""Content keys: for each stage one hash of everything that determines its result. A run is current iff its keys are.

A stage's key covers its command, the values that it reads in params.yaml, the files that no stage makes, its code, and
the keys of its upstream stages. Stages with equal keys compute the same result.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvc.dependency.param import ParamsDependency
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.stage import Stage

from flows.dvc_repo import open_repo, project_cache
from flows.environment import dvc_state_within
from flows.experiments.cells import Cell
from flows.experiments.record import Run, last_runs
from flows.plan.changes import check_deps, record_codes, writes_code
from flows.plan.settings import read_policy
from flows.sweep import clone
from stages.runtime.errors import UserError
from stages.runtime.preflight import check_before_run
from stages.runtime.section import PARAMS_FILE
from stages.runtime.stage_code import FOLDER, code_in, file_changes

if TYPE_CHECKING:
    from flows.sweep.jobs import Batch

PLANNING = clone.CLONES / "plan"
"""The clone in which the keys of each cell are computed."""


@dataclass(frozen=True)
class CellStatus:
    """The last run of a cell, and why the cell would run again."""

    run: Run | None
    reason: str
    """Why the cell would run; empty if its run is current."""
    failed: bool = False
    """True if the cell would run only because it failed; then it needs `--retry`."""


def cell_statuses(batch: "Batch", keys: dict[str, dict[str, str]]) -> dict[str, CellStatus]:
    """Return the status of each cell, by its id. `keys` are the result of `keys_of_cells`."""
    last, statuses = last_runs(batch.record), dict[str, CellStatus]()
    for cell in batch.cells:
        run = last.get(cell.id)
        if run is None:
            statuses[cell.id] = CellStatus(None, "not run yet")
            continue
        changed = [stage for stage, key in keys[cell.id].items() if run.keys.get(stage) != key]
        absent = sorted({*batch.reports, *batch.curves} - run.reports.keys() - run.curves.keys())
        if changed:
            statuses[cell.id] = CellStatus(run, f"{changed[0]} has changed since its last run")
        elif run.state != "finished":
            statuses[cell.id] = CellStatus(run, f"{run.state}: {run.message}", failed=run.state == "failed")
        else:
            statuses[cell.id] = CellStatus(run, f"{', '.join(absent[:3])} missing" if absent else "")
    return statuses


def keys_of_cells(cells: Iterable[Cell], targets: Sequence[str], head: str) -> dict[str, dict[str, str]]:
    """Return the keys of the target stages and their upstream stages, upstreams first, by cell id.

    Raises UserError if a clone of the commit `head` has other files than the project.
    """
    keys: dict[str, dict[str, str]] = {}
    cache = project_cache()
    for cell in cells:
        folder = clone.prepare_clone(cell, head, PLANNING, cache=cache)
        with working_in(folder):
            in_clone = {} if keys else source_hashes(targets)
            cell_keys = stage_keys(targets)
        if in_clone:
            require_same(source_hashes(targets), in_clone)
        try:
            with working_in(folder):
                check_before_run(cell_keys)
        except UserError as error:
            raise UserError(f"cell {cell.label}, in a clone of the last commit: {error}") from None
        keys[cell.id] = cell_keys
    if keys:
        clone.discard(PLANNING.absolute())
    return keys


def require_same(here: dict[str, str], in_clone: dict[str, str]) -> None:
    """Raise UserError if files that the stages read are not the same in the planning clone.

    They may be new or ignored, or have other line ends. The message has the changed files of a stage's code.
    """
    differ = [path for path in here if here[path] != in_clone.get(path)]
    codes = {path: (code_in(PLANNING / path), code_in(Path(path))) for path in differ if Path(path).parent == FOLDER}
    # A record may differ though its files are the same: another corpus needs other libraries.
    changes = {path: file_changes(old, new) for path, (old, new) in codes.items() if old and new}
    if differ := sorted({file for path in differ for file in changes.get(path, [path])}):
        path = differ[0]
        raise UserError(
            f"{', '.join(differ[:5])}: differs from the last commit, and a sweep runs a clone of that commit. "
            f"Commit the files: `git add -f {path}` (large ones: `dvc add`). If git converts line ends, write "
            f"`{path.partition('/')[0]}/** -text` to .gitattributes, `git add --renormalize .`, commit"
        )


def stage_keys(targets: Sequence[str]) -> dict[str, str]:
    """Return the keys of the target stages and their upstream stages, upstreams first, in this folder's project."""
    keys: dict[str, str] = {}

    def key(stage: Any) -> str:
        name = str(stage.addressing)
        if name not in keys:
            before = sorted(key(other) for other in graph.successors(stage) if is_computed(other))
            values = {str(dep): dep.read_params() for dep in stage.deps if isinstance(dep, ParamsDependency)}
            files = {path: computing_sha256_in(Path(path)) or digest for path, digest in sources.of(stage)}
            text = json.dumps([name, stage.cmd, values, files, before], sort_keys=True, default=str)
            keys[name] = hashlib.sha256(text.encode()).hexdigest()[:12]
        return keys[name]

    with open_repo() as repo:
        graph, sources = repo.index.graph, SourceFiles(repo)
        for stage in _wanted(repo, targets):
            key(stage)
    return keys


def computing_sha256_in(path: Path) -> str:
    """Return the hash that shards and checkpoints also use, if a file is the record of a stage's code; else ""."""
    code = code_in(path) if path.parent == FOLDER else None
    return code.computing_sha256 if code else ""


def source_hashes(targets: Sequence[str]) -> dict[str, str]:
    """Return the hash of each file or folder that the targets and their upstream stages read and no stage makes."""
    with open_repo() as repo:
        stages = _wanted(repo, targets)
        check_deps(repo, stages)
        sources = SourceFiles(repo)
        return dict(pair for stage in stages for pair in sources.of(stage))


@dataclass(frozen=True)
class TargetFacts:
    """Facts of dvc.yaml about the targets of an experiment and their upstream stages."""

    sections: set[str]
    """The sections of params.yaml that they read."""
    outs: set[Path]
    """The paths that they write."""
    retries: int
    """The maximum of their retries."""
    retry_delay_seconds: float
    """The longest delay before a retry."""


def facts_of_targets(targets: Sequence[str], named_in: Path) -> TargetFacts:
    """Read these facts. Raises UserError on a stage that does not exist, with the file `named_in` that contains it."""
    with open_repo() as repo:
        try:
            stages = _wanted(repo, targets)
        except DvcException as error:
            raise UserError(f"{named_in}: targets: {error}") from None
        params = [dep for stage in stages for dep in stage.deps if isinstance(dep, ParamsDependency)]
        keys = [key for dep in params if Path(dep.fs_path).name == str(PARAMS_FILE) for key in dep.params]
        policies = [read_policy(stage.addressing, getattr(stage, "meta", None)) for stage in stages]
        return TargetFacts(
            {key.partition(".")[0] for key in keys},
            {Path(out.fs_path).relative_to(repo.root_dir) for stage in stages for out in stage.outs},
            max((policy.retries for policy in policies), default=0),
            max((policy.retry_delay_seconds for policy in policies), default=0.0),
        )


def is_computed(stage: Stage) -> bool:
    """Return False for data that people add to DVC, and for the record of a stage's code."""
    return bool(stage.cmd) and not writes_code(stage)


def _wanted(repo: Repo, targets: Sequence[str]) -> list[Stage]:
    stages = [stage for target in targets for stage in repo.stage.collect(target, with_deps=True)]
    return [stage for stage in dict.fromkeys(stages) if is_computed(stage)]


class SourceFiles:
    """The files that stages read and no stage makes."""

    def __init__(self, repo: Repo) -> None:
        stages = repo.index.stages
        self._made = {Path(out.fs_path) for stage in stages if is_computed(stage) for out in stage.outs}
        record_codes(stages)

    def of(self, stage: Stage) -> Iterator[tuple[str, str]]:
        """Yield the files of a stage and the record of its code, with their hashes."""
        for dep in stage.deps:
            path = Path(dep.fs_path)
            if isinstance(dep, ParamsDependency):
                continue
            if not self._made & {path, *path.parents}:
                yield str(dep), dep.get_hash().value if dep.exists else ""


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Make the clone `folder` the working directory. Only for a process with one thread."""
    before = {name: os.environ.get(name) for name in dvc_state_within(folder)}
    os.environ.update(dvc_state_within(folder))
    try:
        with chdir(folder):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
