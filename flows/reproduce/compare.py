"""Compares the rebuilt outputs of each stage with the recorded ones.

The hashes in dvc.lock and in the index show whether the bytes are equal. If not, the files that the revision contains
are compared field by field: JSON by key, curves by step, weights by tensor.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError

from flows.reproduce.revision import RecordedRevision, code_changes_in
from stages.formats.curves import read_curves
from stages.formats.revision.provenance import LockEntry, hash_of, overlaps
from stages.runtime.atomic import file_sha256
from stages.runtime.errors import first_line
from stages.runtime.preflight import LOCK_FILE, recorded_stages
from stages.runtime.section import differences
from stages.runtime.stage_code import FOLDER

VERSIONS = re.compile(r"(^|\.)(versions|python)\b")
"""Keys of a report that record library versions, not results."""

UNREADABLE = (ValueError, TypeError, LookupError, OSError, RecursionError, SafetensorError)
"""Exceptions raised for a damaged file."""


@dataclass(frozen=True, slots=True)
class FileDifference:
    """The first difference between two versions of a file, and the extent of all differences."""

    field: str
    """A dotted key, a step of a curve, or a tensor; empty if files are compared as a whole."""
    recorded: str
    found: str
    extent: str = ""
    """How much differs, in words."""
    only_versions: bool = False
    """Only versions of libraries or of Python differ."""
    file: str = ""
    """The path in the project: of the file if the revision contains it, else of the output."""

    def __str__(self) -> str:
        field = f": {self.field}" if self.field else ""
        extent = f" ({self.extent})" if self.extent else ""
        return f"{self.file}{field}: recorded {self.recorded}, found {self.found}{extent}"


@dataclass(frozen=True, slots=True)
class ComparedStage:
    """A rebuilt stage compared with the record."""

    name: str
    state: Literal["identical", "restored", "different", "not run"]
    """restored: its recorded outputs were pulled, not computed."""
    different_inputs: list[str]
    """Changes of its command, parameters, versions, code or data, except outputs of other stages."""
    differences: list[FileDifference]
    """Differences of its outputs."""


def first_difference(recorded: Path, found: Path, sha256: str) -> FileDifference | None:
    """The first difference between two files; None if the bytes are equal. `sha256`: of the recorded file, verified."""
    if not found.is_file():
        return FileDifference("", "a file", "no file")
    if file_sha256(found) == sha256:
        return None
    compare = COMPARISONS.get(recorded.suffix, whole)
    try:
        return compare(recorded, found) or whole(recorded, found)
    except UNREADABLE as error:
        return FileDifference("", "readable", first_line(error))


def value_difference(recorded: Path, found: Path) -> FileDifference | None:
    """Compare JSON by key, or curves by step."""
    pairs = list(differences("", values_in(recorded), values_in(found)))
    if not pairs:
        return None
    only_versions = all(VERSIONS.search(key) for key, _, _ in pairs)
    key, left, right = pairs[0]
    extent = f"{len(pairs)} values differ" if len(pairs) > 1 else ""
    return FileDifference(key, str(left), str(right), extent, only_versions)


def values_in(file: Path) -> Any:
    """The values of a JSON file, or those of curves by key."""
    if file.suffix == ".json":
        return json.loads(file.read_bytes())
    curves = read_curves(file).items()
    return {f"{name} at {step:g}": str(value) for name, points in curves for step, value in points}


def tensor_difference(recorded: Path, found: Path) -> FileDifference | None:
    """Compare weights by tensor: the first by name that differs, how many do, and the largest difference."""
    from safetensors import safe_open

    with safe_open(recorded, framework="pt") as ours, safe_open(found, framework="pt") as theirs:
        names, others = sorted(ours.keys()), sorted(theirs.keys())
        if names != others:
            first = min(set(names) ^ set(others))
            return FileDifference(first, "there" if first in names else "none", "there" if first in others else "none")
        differing: list[tuple[str, str, str]] = []
        largest = 0.0
        for name in names:
            left, right = ours.get_tensor(name), theirs.get_tensor(name)
            if left.shape != right.shape or left.dtype != right.dtype:
                shapes = [f"{tensor.dtype} {list(tensor.shape)}" for tensor in (left, right)]
                return FileDifference(name, shapes[0], shapes[1])
            same = (left == right) | (left.isnan() & right.isnan())
            if bool(same.all()):
                continue
            # Let NaN differ infinitely from a number, because max() and argmax() would propagate it.
            apart = (left.double() - right.double()).abs().nan_to_num(nan=math.inf).masked_fill(same, 0.0)
            largest = max(largest, float(apart.max()))
            at = int(apart.argmax())
            values = [f"{float(tensor.flatten()[at]):.9g} at [{at}]" for tensor in (left, right)]
            differing.append((name, values[0], values[1]))
    if not differing:
        return None
    extent = f"{len(differing)} of {len(names)} tensors differ, by at most {largest:.3g}"
    return FileDifference(*differing[0], extent)


def whole(recorded: Path, found: Path) -> FileDifference:
    """Compare the sizes of files of an unknown format."""
    sizes = [f"{path.stat().st_size} bytes" for path in (recorded, found)]
    return FileDifference("", sizes[0], f"{sizes[1]}, others")


COMPARISONS: dict[str, Callable[[Path, Path], FileDifference | None]] = {
    ".json": value_difference,
    ".tsv": value_difference,
    ".safetensors": tensor_difference,
}
"""File suffix -> comparison."""


def compare_stages(revision: RecordedRevision, checkout: Path, restored: list[str]) -> list[ComparedStage]:
    """Compare all stages that led to the revision."""
    locked = recorded_stages(checkout / LOCK_FILE, trusted=False)
    return [compare_stage(revision, checkout, stage, locked.get(stage), stage in restored) for stage in revision.stages]


def compare_stage(
    revision: RecordedRevision, checkout: Path, stage: str, computed: LockEntry | None, restored: bool
) -> ComparedStage:
    """Compare one stage; `computed` is its new entry in dvc.lock."""
    recorded = revision.stages[stage]
    if computed is None:
        return ComparedStage(stage, "not run", [], [])
    differing = list(different_files(revision, checkout, stage))
    named = [difference.file for difference in differing]
    new = {out["path"]: hash_of(out) for out in computed.get("outs", [])}
    for out in recorded.get("outs", []):
        old, path = hash_of(out), out["path"]
        if old != new.get(path) and not any(overlaps(path, file) for file in named):
            differing.append(FileDifference("", f"md5 {old}", f"md5 {new.get(path)}", file=path))
    inputs = list(different_inputs(revision, checkout, recorded, computed))
    # If inputs differ, DVC computed the stage although its recorded outputs were restored.
    state: Literal["identical", "restored", "different"] = "restored" if restored and not inputs else "identical"
    return ComparedStage(stage, "different" if differing else state, inputs, differing)


def different_files(revision: RecordedRevision, checkout: Path, stage: str) -> Iterator[FileDifference]:
    """Yield the first difference of each published file of a stage."""
    seen: set[str] = set()
    for path, file in revision.published.items():
        if revision.maker_of(file) == stage and file not in seen:
            seen.add(file)
            sha256 = revision.provenance.files[path]
            difference = first_difference(revision.folder / path, checkout / file, sha256)
            if difference is not None:
                yield replace(difference, file=file)


def different_inputs(
    revision: RecordedRevision, checkout: Path, recorded: LockEntry, found: LockEntry
) -> Iterator[str]:
    """Yield the differences of command, parameters and dependencies."""
    if recorded.get("cmd") != found.get("cmd"):
        yield f"command: {recorded.get('cmd')} -> {found.get('cmd')}"
    for file, values in recorded.get("params", {}).items():
        other: dict[str, Any] = found.get("params", {}).get(file, {})
        for key, old in values.items():
            if old != other.get(key):
                yield f"{file}: {key}: {old} -> {other.get(key)}"
    hashes = {dep["path"]: hash_of(dep) for dep in found.get("deps", [])}
    for dep in recorded.get("deps", []):
        path = dep["path"]
        if hash_of(dep) == hashes.get(path):
            continue
        if Path(path).parent == FOLDER:
            yield from code_changes_in(revision, checkout, path)
        elif not revision.is_made(path):
            yield f"{path}: md5 {hash_of(dep)} -> {hashes.get(path)}"
