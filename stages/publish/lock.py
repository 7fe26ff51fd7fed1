"""Checks that the project matches dvc.lock for all stages that led to the model.

Each stage fails if its inputs change while it runs. The same check of the whole chain ensures that a revision records
one consistent state: params.yaml, dvc.yaml, requirements.lock and the code are copied as they are.
"""

from collections.abc import Iterator
from pathlib import Path

from stages.formats.revision.provenance import Stages, ancestors, code_files, makers_of, overlaps, revision_path
from stages.runtime.errors import UserError, first_line
from stages.runtime.preflight import DVC_FILE, LOCK_FILE, listed_paths, recorded_stages, stage_templates
from stages.runtime.section import PARAMS_FILE, write_yaml
from stages.runtime.stage_code import FOLDER, REQUIREMENTS_LOCK, code_changes, code_in


def in_temporary_workspace(folder: Path) -> bool:
    """True in the workspace of a DVC experiment or in the clone of a sweep's cell."""
    path = f"{folder.absolute().as_posix()}/"
    return "/.dvc/tmp/exps/" in path or "/.parrotflow/sweep/" in path


def published_stages() -> Stages:
    """The entries in dvc.lock of the stages before publish, in topological order.

    Raises UserError that names the first parameter, command, input, file of code or output that differs from that.
    """
    everything, inputs = recorded_stages(), listed_paths(stage_templates().get("publish", {}), "deps")
    made = makers_of(everything)
    for path in inputs:
        if not any(overlaps(path, out) for out in made):
            raise UserError(f"{LOCK_FILE}: no stage has made {path}: run `dvc repro`")
    stages = ancestors(everything, inputs)
    recorded = {path: code_in(path) for path in code_files(stages)}
    for change in (*code_changes(recorded), *changes_since_lock(stages)):
        raise UserError(
            f"{change}; only results that match {LOCK_FILE} are published: undo the edit (`parrotflow why` names it), "
            "or run `dvc repro`"
        )
    return stages


def changes_since_lock(stages: Stages) -> Iterator[str]:
    """Yield the differences from the entries in dvc.lock that DVC reports, except missing outputs."""
    from dvc.exceptions import DvcException  # slow
    from dvc.repo import Repo

    try:
        with Repo(_wait_for_lock=True) as repo:
            status = repo.status(targets=list(stages)) if stages else {}
    except DvcException as error:
        raise UserError(f"DVC cannot compare the project with {LOCK_FILE}: {first_line(error)}") from None
    made = makers_of(stages)
    for stage, changes in status.items():
        if "changed command" in changes:
            yield f"{DVC_FILE}: {stage}: the command differs from the one that ran: {stages[stage]['cmd']}"
        kinds = {kind: paths for change in changes if isinstance(change, dict) for kind, paths in change.items()}
        for path, how in kinds.get("changed deps", {}).items():
            if isinstance(how, dict):
                yield from (f"{path}: {key} is {state} since {stage} ran" for key, state in how.items())
            elif how != "deleted" or path not in made:
                yield f"{path}: is {how} since {stage} read it"
        for path, how in kinds.get("changed outs", {}).items():
            if how not in ("deleted", "not in cache"):
                yield f"{path}: is {how} since {stage} made it"


def outside_deps(stages: Stages) -> list[str]:
    """The files and folders that stages depend on but do not write, except files of code."""
    made = makers_of(stages)
    paths = {dep["path"]: None for stage in stages.values() for dep in stage.get("deps", [])}
    return [path for path in paths if Path(path).parent != FOLDER and not any(overlaps(path, out) for out in made)]


def settings(stages: Stages) -> dict[str, bytes]:
    """Path in the revision -> content of the files that record what the stages ran with."""
    kept = (PARAMS_FILE, REQUIREMENTS_LOCK, DVC_FILE, *code_files(stages))
    return {revision_path(path): path.read_bytes() for path in kept if path.is_file()} | {
        revision_path(LOCK_FILE): lock_of(stages)
    }


def lock_of(stages: Stages) -> bytes:
    """dvc.lock with only these stages, in DVC's format."""
    return write_yaml({"schema": "2.0", "stages": stages}).encode("utf-8")
