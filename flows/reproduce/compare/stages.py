"""Stage by stage, in the order of the DAG: the new dvc.lock against the recorded one, then the files themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from ruamel.yaml import YAML

from flows.reproduce.compare.fields import (
    Cause,
    ComparedStage,
    FieldDifference,
    FileDifference,
    Kind,
    first_difference,
)
from flows.reproduce.revision import Revision, changed_code
from stages.formats.revision.lock import Entry, hash_of, overlaps
from stages.runtime.stage_code import FOLDER

LOCK = Path("dvc.lock")


def compare_stages(revision: Revision, checkout: Path, restored: list[str]) -> list[ComparedStage]:
    """All stages that led to the revision."""
    lock = checkout / LOCK
    found = (YAML(typ="safe", pure=True).load(lock).get("stages") or {}) if lock.exists() else {}
    return [compare_stage(revision, checkout, stage, found.get(stage), stage in restored) for stage in revision.stages]


def compare_stage(revision: Revision, checkout: Path, stage: str, found: Entry | None, restored: bool) -> ComparedStage:
    """One stage; `found` is its new entry in dvc.lock."""
    recorded = revision.stages[stage]
    outs = recorded.get("outs", [])
    if found is None:
        return ComparedStage(stage, "not run", 0, [], [])
    differences = list(different_files(revision, checkout, stage))
    named = [difference.file for difference in differences]
    new = {out["path"]: hash_of(out) for out in found.get("outs", [])}
    for out in outs:
        old, path = hash_of(out), out["path"]
        if old != new.get(path) and not any(overlaps(path, file) for file in named):
            differences.append(FileDifference(path, FieldDifference("", f"md5 {old}", f"md5 {new.get(path)}")))
    inputs = list(different_inputs(revision, checkout, recorded, found))
    # With other inputs than recorded DVC computed the stage, although its recorded outputs were there.
    state: Literal["identical", "restored", "different"] = "restored" if restored and not inputs else "identical"
    as_recorded = [out["path"] for out in outs if hash_of(out) == new.get(out["path"])]
    return ComparedStage(
        stage,
        "different" if differences else state,
        len(outs),
        inputs,
        differences,
        [file for file in named if any(overlaps(path, file) for path in as_recorded)],
    )


def different_files(revision: Revision, checkout: Path, stage: str) -> Iterator[FileDifference]:
    """The published files that a stage made and that came out otherwise; one line for each file of the project."""
    seen: set[str] = set()
    for path, file in revision.published.items():
        if revision.maker_of(file) == stage and file not in seen:
            seen.add(file)
            difference = first_difference(revision.folder / path, checkout / file)
            if difference is not None:
                yield FileDifference(file, difference)


def different_inputs(revision: Revision, checkout: Path, recorded: Entry, found: Entry) -> Iterator[Cause]:
    """Command, parameters and dependencies that are not the recorded ones."""
    if recorded.get("cmd") != found.get("cmd"):
        yield Cause("code", f"command: {recorded.get('cmd')} -> {found.get('cmd')}")
    for file, values in recorded.get("params", {}).items():
        other: dict[str, Any] = found.get("params", {}).get(file, {})
        for key, old in values.items():
            if old != other.get(key):
                yield Cause("parameters", f"{file}: {key}: {old} -> {other.get(key)}")
    hashes = {dep["path"]: hash_of(dep) for dep in found.get("deps", [])}
    for dep in recorded.get("deps", []):
        path = dep["path"]
        if hash_of(dep) == hashes.get(path):
            continue
        if Path(path).parent == FOLDER:
            changes = changed_code(revision, checkout, path)
            yield from (Cause(kind, f"{name}: {how}") for kind, name, how in changes)
        elif not revision.is_made(path):
            kind: Kind = "code" if path.endswith(".py") else "data"
            yield Cause(kind, f"{path}: md5 {hash_of(dep)} -> {hashes.get(path)}")
