"""The outputs and inputs of each stage, against the record; two versions of a file field by field.

JSON is compared by key, tables by row and column, weights by tensor. The verdict comes first from the hashes in
dvc.lock, which say of each output whether its bytes are the recorded ones. Where they are not, the files that the
revision has are compared field by field.
"""

import csv
import filecmp
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from ruamel.yaml import YAML
from safetensors import SafetensorError

from flows.dvc_repo.lock_file import LOCK_FILE
from flows.reproduce.revision import RecordedRevision, changed_code
from stages.formats.model_folder import MODEL, weights_sha256
from stages.formats.revision.lock import LockEntry, hash_of, overlaps
from stages.runtime.entry import UserError, first_line
from stages.runtime.stage_code import FOLDER

CARD_STAGE = "card"
"""What the comparison of the card is called among the stages. The stage that makes it is not run: it would publish."""

ROUNDING = 1e-4
"""The relative difference that arithmetic alone may make in a number that was computed from the same weights."""

NEXT_TO_ZERO = 1e-6
"""The same for a number near 0, such as a difference of two others."""

PYTHON = "python"

VERSIONS = {"versions", PYTHON}
"""The keys of a receipt under which it names the libraries, and the Python, that computed."""

PREVIOUS = re.compile(r"(^|\.)(compared|models)\.previous\b")
"""The key of what belongs to the model that `evaluate.previous` names: the one that was published before, which moves
on and of which no record holds the weights."""

NOT_OF_ITS_KIND = (ValueError, TypeError, LookupError, OSError, RecursionError, csv.Error, SafetensorError)
"""What reading a damaged file raises."""

DifferenceWeight = Literal["rounding", "versions", "content"]

CauseKind = Literal[
    "publication", "data", "code", "parameters", "library", "hardware", "threads", "settings", "unknown"
]


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that was not as recorded and can explain a difference."""

    kind: CauseKind
    fact: str


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which two versions of a file differ, and how far they differ altogether."""

    field: str
    """A dotted key, a row and a column, or a tensor; empty where the content is compared as a whole."""
    recorded: str
    found: str
    extent: str = ""
    """How much else differs, in words."""
    weight: DifferenceWeight = "content"
    """`rounding`: nothing differs but numbers, by no more than that; `versions`: and the libraries that are named."""
    file: str = ""
    """The output, in the project; of a folder the file in it, where the revision has that file."""

    def __str__(self) -> str:
        field = f": {self.field}" if self.field else ""
        extent = f" ({self.extent})" if self.extent else ""
        return f"{self.file}{field}: recorded {self.recorded}, found {self.found}{extent}"


@dataclass(frozen=True, slots=True)
class ComparedStage:
    """A stage as it came out, against the record."""

    name: str
    state: Literal["identical", "restored", "different", "not run"]
    """restored: not computed here, its recorded outputs were pulled."""
    different_inputs: list[Cause]
    """Its command, parameters, versions, code or data that are not the recorded ones, without what stages made."""
    differences: list[Difference]
    """Of its outputs."""
    not_as_made: list[str] = field(default_factory=list)
    """Of the differing files those whose stage made the recorded output here: the published file is another one."""


def first_difference(recorded: Path, found: Path) -> Difference | None:
    """None where the bytes are equal."""
    if not found.is_file():
        return Difference("", "a file", "no file")
    if filecmp.cmp(recorded, found, shallow=False):
        return None
    compare = COMPARISONS.get(recorded.suffix, whole)
    try:
        return compare(recorded, found) or whole(recorded, found)
    except NOT_OF_ITS_KIND as error:
        return Difference("", "readable", first_line(error))


def json_difference(recorded: Path, found: Path) -> Difference | None:
    """By key."""
    pairs = list(keys(json.loads(recorded.read_bytes()), json.loads(found.read_bytes())))
    judged = [pair for pair in pairs if not PREVIOUS.search(pair[0])]
    others = [pair for pair in judged if VERSIONS.isdisjoint(pair[0].split("."))]
    difference = of_pairs(pairs, "values")
    if difference is None or any(not is_rounding(left, right) for _, left, right in others):
        return difference
    return replace(difference, weight="rounding" if len(others) == len(judged) else "versions")


def is_rounding(left: object, right: object) -> bool:
    """Whether two values are numbers that arithmetic alone can set apart; counts are not."""
    if not isinstance(left, float) or not isinstance(right, float):
        return False
    return math.isclose(left, right, rel_tol=ROUNDING, abs_tol=NEXT_TO_ZERO)


def number(cell: object) -> object:
    """A cell of a table as a number, where it is one."""
    try:
        return float(str(cell))
    except ValueError:
        return cell


def keys(left: Any, right: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, left, right) of each value that differs."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in dict.fromkeys((*left, *right)):
            yield from keys(left.get(key), right.get(key), f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from keys(one, other, f"{prefix}[{number}]")
    elif left != right:
        yield prefix, left, right


def table_difference(recorded: Path, found: Path) -> Difference | None:
    """By row and column. A row is named by its first cell: in a curve, the step."""
    delimiter = "\t" if recorded.suffix == ".tsv" else ","
    (head, *ours), (other_head, *theirs) = (
        list(csv.reader(path.read_text(encoding="utf-8").splitlines(), delimiter=delimiter)) or [[]]
        for path in (recorded, found)
    )
    if head != other_head:
        return Difference("header", ", ".join(head), ", ".join(other_head))
    rows = [(left, right) for left, right in zip_longest(ours, theirs) if left != right]
    pairs: list[tuple[str, Any, Any]] = []
    for left, right in rows:
        row = f"{head[0]} {(left or right)[0]}"
        if left is None or right is None:
            pairs.append((row, "a row" if left else "no row", "a row" if right else "no row"))
            continue
        cells = zip_longest(head, left, right, fillvalue="")
        pairs += [(f"{row}, {name}", one, other) for name, one, other in cells if one != other]
    same_rows = all(left and right and left[0] == right[0] for left, right in rows)  # a step is a count
    rounded = same_rows and all(is_rounding(number(one), number(other)) for _, one, other in pairs)
    difference, extent = of_pairs(pairs, "cells"), f"{len(rows)} of {len(ours)} rows differ"
    return difference and replace(difference, extent=extent, weight="rounding" if rounded else "content")


def tensor_difference(recorded: Path, found: Path) -> Difference | None:
    """By tensor, in the order of their names: the first that differs, how many do, the largest difference."""
    import torch
    from safetensors import safe_open

    with safe_open(recorded, framework="pt") as ours, safe_open(found, framework="pt") as theirs:
        names, others = sorted(ours.keys()), sorted(theirs.keys())
        if names != others:
            first = min(set(names) ^ set(others))
            return Difference(first, "there" if first in names else "none", "there" if first in others else "none")
        differing: list[tuple[str, str, str]] = []
        largest = 0.0
        for name in names:
            left, right = ours.get_tensor(name), theirs.get_tensor(name)
            if left.shape != right.shape or left.dtype != right.dtype:
                shapes = [f"{tensor.dtype} {list(tensor.shape)}" for tensor in (left, right)]
                return Difference(name, shapes[0], shapes[1])
            if torch.equal(left, right):
                continue
            apart = (left.double() - right.double()).abs()
            largest = max(largest, float(apart.max()))
            at = int(apart.argmax())
            values = [f"{float(tensor.flatten()[at]):.9g} at [{at}]" for tensor in (left, right)]
            differing.append((name, values[0], values[1]))
    if not differing:
        return None
    extent = f"{len(differing)} of {len(names)} tensors differ, by at most {largest:.3g}"
    return Difference(*differing[0], extent)


def whole(recorded: Path, found: Path) -> Difference:
    """By size alone: what the bytes mean is not known."""
    sizes = [f"{path.stat().st_size} bytes" for path in (recorded, found)]
    return Difference("", sizes[0], f"{sizes[1]}, others")


def of_pairs(pairs: list[tuple[str, Any, Any]], what: str) -> Difference | None:
    """The first of the values that differ, and their number."""
    if not pairs:
        return None
    field, left, right = pairs[0]
    return Difference(field, str(left), str(right), f"{len(pairs)} {what} differ" if len(pairs) > 1 else "")


COMPARISONS: dict[str, Callable[[Path, Path], Difference | None]] = {
    ".json": json_difference,
    ".tsv": table_difference,
    ".csv": table_difference,
    ".safetensors": tensor_difference,
}
"""By the ending of a file's name."""


def compare_stages(revision: RecordedRevision, checkout: Path, restored: list[str]) -> list[ComparedStage]:
    """All stages that led to the revision."""
    lock = checkout / LOCK_FILE
    found = (YAML(typ="safe", pure=True).load(lock).get("stages") or {}) if lock.exists() else {}
    return [compare_stage(revision, checkout, stage, found.get(stage), stage in restored) for stage in revision.stages]


def compare_stage(
    revision: RecordedRevision, checkout: Path, stage: str, found: LockEntry | None, restored: bool
) -> ComparedStage:
    """One stage; `found` is its new entry in dvc.lock."""
    recorded = revision.stages[stage]
    outs = recorded.get("outs", [])
    if found is None:
        return ComparedStage(stage, "not run", [], [])
    differences = list(different_files(revision, checkout, stage))
    named = [difference.file for difference in differences]
    new = {out["path"]: hash_of(out) for out in found.get("outs", [])}
    for out in outs:
        old, path = hash_of(out), out["path"]
        if old != new.get(path) and not any(overlaps(path, file) for file in named):
            differences.append(Difference("", f"md5 {old}", f"md5 {new.get(path)}", file=path))
    inputs = list(different_inputs(revision, checkout, recorded, found))
    # With other inputs than recorded DVC computed the stage, although its recorded outputs were there.
    state: Literal["identical", "restored", "different"] = "restored" if restored and not inputs else "identical"
    as_recorded = [out["path"] for out in outs if hash_of(out) == new.get(out["path"])]
    return ComparedStage(
        stage,
        "different" if differences else state,
        inputs,
        differences,
        [file for file in named if any(overlaps(path, file) for path in as_recorded)],
    )


def different_files(revision: RecordedRevision, checkout: Path, stage: str) -> Iterator[Difference]:
    """The published files that a stage made and that came out otherwise; one line for each file of the project."""
    seen: set[str] = set()
    for path, file in revision.published.items():
        if revision.maker_of(file) == stage and file not in seen:
            seen.add(file)
            difference = first_difference(revision.folder / path, checkout / file)
            if difference is not None:
                yield replace(difference, file=file)


def different_inputs(
    revision: RecordedRevision, checkout: Path, recorded: LockEntry, found: LockEntry
) -> Iterator[Cause]:
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
            kind: CauseKind = "code" if path.endswith(".py") else "data"
            yield Cause(kind, f"{path}: md5 {hash_of(dep)} -> {hashes.get(path)}")


def same_weights(revision: RecordedRevision, checkout: Path) -> bool:
    """Whether the rebuilt weights are the published ones; False where there are none."""
    try:
        return weights_sha256(checkout / MODEL) == revision.provenance.weights_sha256
    except UserError:
        return False
