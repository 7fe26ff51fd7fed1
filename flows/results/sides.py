"""The arguments of `parrotflow compare`: a run of the log, a revision, a commit, a cell, a folder, or the workspace."""

import subprocess
from pathlib import Path

from flows.dvc_repo import has_commit
from flows.experiments.experiment import EXPERIMENTS
from flows.experiments.record import RUNS_FILE, recorded_runs
from flows.reproduce.revision import HUB_NAME, open_revision, work_folder
from flows.results.log import runs_here
from flows.results.recorded import WORKSPACE, Recorded, in_folder, in_workspace
from stages.formats.evaluation.report import EVALUATE_REPORT
from stages.formats.revision.execution import TRAIN_SPEED
from stages.formats.revision.provenance import (
    MIN_DIGITS,
    PROVENANCE,
    REVISIONS,
    SPEED,
    Stages,
    ancestors,
    revision_path,
)
from stages.runtime.errors import UserError
from stages.runtime.preflight import LOCK_FILE, recorded_stages
from stages.runtime.section import read_yaml


def open_sides(*asked: str) -> list[Recorded]:
    """The recorded runs of the arguments. Raises UserError if one does not exist, or was not evaluated."""
    sides = [*map(_found, asked)]
    if missing := [side.name for side in sides if not ancestors(side.stages, [str(EVALUATE_REPORT)])]:
        raise UserError(
            f"{' and '.join(missing)}: not evaluated: choose runs with bits per byte in `parrotflow log`; "
            "`parrotflow run evaluate` evaluates the workspace"
        )
    for side in sides:
        if changed := side.changed_dep(EVALUATE_REPORT):
            dep, stage = changed
            raise UserError(f"{side.name}: {dep} has changed since {stage} read it: run `parrotflow run`")
    return sides


def _found(asked: str) -> Recorded:
    if asked == WORKSPACE:
        return in_workspace(recorded_stages(), recorded_stages())
    if run := next((run for run in runs_here() if run.name == asked), None):
        return Recorded(f"run {asked}", run.stages, logged=run.figures)
    if (Path(asked) / LOCK_FILE).is_file():
        return Recorded(asked, recorded_stages(Path(asked) / LOCK_FILE), in_folder(Path(asked)))
    folders = [path for path in Path().glob(f"*/*/{REVISIONS}/{asked}*") if (path / PROVENANCE).is_file()]
    if len(asked) >= MIN_DIGITS and len(folders) == 1:
        return _of_revision(asked, str(folders[0]))
    cells = {run.cell: run for path in EXPERIMENTS.glob(f"*/{RUNS_FILE}") for run in recorded_runs(path)}
    commits = [run.commit for run in cells.values() if asked in (run.cell, run.experiment) and run.commit]
    commit = commits[-1] if commits else asked
    if has_commit(commit):
        return Recorded(asked, _lock_at(commit), lambda path: _at_commit(commit, path))
    if Path(asked).is_dir() or HUB_NAME.fullmatch(asked):
        return _of_revision(asked, asked)
    raise UserError(
        f"{asked}: not found: it is no run in `parrotflow log`, published revision, commit, run of a sweep, or folder; "
        "to compare with another project's model, list it in evaluate.baselines"
    )


def _of_revision(asked: str, name: str) -> Recorded:
    revision = open_revision(name, work_folder(name, None))

    def beside(path: str) -> bytes | None:
        return in_folder(revision.folder)(SPEED if path == str(TRAIN_SPEED) else revision_path(path))

    return Recorded(asked, revision.stages, beside)


def _at_commit(commit: str, path: str) -> bytes | None:
    done = subprocess.run(["git", "show", f"{commit}:./{path}"], capture_output=True, check=False)
    return None if done.returncode else done.stdout


def _lock_at(commit: str) -> Stages:
    stages: Stages = (read_yaml(_at_commit(commit, str(LOCK_FILE)) or b"{}") or {}).get("stages", {})
    return stages
