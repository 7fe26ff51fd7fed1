"""Compares two revisions: parameters, data, code, libraries, execution, metrics, files.

Where the losses of each held-out document are still on this machine (in data/ or in DVC's cache), the difference in
bits per byte is paired: both models are compared on the same documents, which says far more than two intervals do.
"""

import hashlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from stages.formats.evaluation.document_losses import DOCUMENT_LOSSES, read_document_losses
from stages.formats.evaluation.harness import HARNESS_REPORT
from stages.formats.evaluation.report import Interval
from stages.formats.evaluation.verdicts import SCORE_REPORT
from stages.formats.model_folder import MODEL
from stages.formats.reports import read_json
from stages.formats.revision.execution import Execution
from stages.formats.revision.inputs import read_inputs
from stages.formats.revision.layout import EVALUATION, INPUTS, record_path
from stages.formats.revision.provenance import Provenance
from stages.formats.splits import VALIDATION
from stages.publish.card.values import flat
from stages.publish.inputs import TRAIN_REPORT
from stages.publish.registry.listing import execution_of, params_of, provenance_of
from stages.publish.registry.registry import Registry

RESAMPLES = 1000
"""Of the paired bootstrap."""

METRICS = {
    "": EVALUATION,
    "score.": record_path(SCORE_REPORT),
    "harness.": record_path(HARNESS_REPORT),
    "train.": record_path(TRAIN_REPORT),
}
"""Prefix of a metric's name -> the file of a revision that has it."""

NOT_METRICS = ("interval_95", "stderr", "sha256", "tasks.", "scored_with")

Changes: TypeAlias = dict[str, tuple[Any, Any]]
"""Name -> the value in the one and in the other; None where it is missing."""


class PairedDifference(BaseModel):
    """The other's bits per byte less the one's, on the documents that both were measured on: below 0 it is better."""

    difference: float
    interval_95: Interval
    """Paired bootstrap over documents."""
    documents: int
    better_share: float
    """Of the documents, on how many the other is better."""


class Comparison(BaseModel):
    """All differences between two revisions."""

    revisions: tuple[str, str]
    params: Changes
    data: Changes
    code: Changes
    versions: Changes
    execution: Changes
    metrics: Changes
    paired: PairedDifference | None
    """None where the losses by document of one of them are not on this machine, or they share no document."""
    files: Changes
    """File -> sha256."""


def compare(registry: Registry, one: str, other: str) -> Comparison:
    """Compare two revisions of a registry."""
    records = [provenance_of(registry, name) for name in (one, other)]
    left, right = records

    def both(part: Any) -> Changes:
        return changes(*(part(record) if record else {} for record in records))

    return Comparison(
        revisions=(one, other),
        params=both(lambda record: dict(flat(params_of(record)))),
        data=changes(*(data_of(registry, name, record) for name, record in zip((one, other), records, strict=True))),
        code=both(code_of),
        versions=both(lambda record: record.versions),
        execution=changes(*(execution_facts(execution_of(registry, name)) for name in (one, other))),
        metrics=changes(*(metrics_of(registry, name) for name in (one, other))),
        paired=paired_difference(left, right) if left and right else None,
        files=both(lambda record: record.files),
    )


def changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> Changes:
    """What differs, in the order of the names."""
    names = sorted(one.keys() | other.keys())
    return {name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)}


def data_of(registry: Registry, name: str, record: Provenance | None) -> dict[str, Any]:
    """Each source with what was taken of it; else the hashes of the files that no stage has made."""
    path = registry.file(name, INPUTS)
    listing = read_inputs(path) if path else None
    if listing is not None:
        sources = {
            f"{source.name} {source.revision}".strip(): f"{source.documents} documents, {source.bytes} bytes, "
            f"sha256 {source.sha256[:16]}"
            for source in listing.sources
        }
        return sources | {dependency.path: dependency.md5 for dependency in listing.dependencies}
    return {path: md5 for path, md5 in dependencies(record) if not is_code(path)} if record else {}


def code_of(record: Provenance) -> dict[str, Any]:
    """The commit, and the hash of each file of code that a stage depends on, of each command too."""
    git = {"commit": record.git.commit, "dirty": record.git.dirty} if record.git else {}
    commands = {f"{stage['stage']}: cmd": stage.get("cmd") for stage in record.pipeline}
    return git | commands | {path: md5 for path, md5 in dependencies(record) if is_code(path)}


def dependencies(record: Provenance) -> Iterator[tuple[str, str]]:
    """Path and md5 of what stages depend on and none has made, as dvc.lock has them."""
    made = {out["path"] for stage in record.pipeline for out in stage.get("outs", [])}
    for stage in record.pipeline:
        for dep in stage.get("deps", []):
            if dep["path"] not in made:
                yield dep["path"], str(dep.get("md5"))


def is_code(path: str) -> bool:
    """Whether a dependency is code: a module, or the template of a page."""
    return path.endswith((".py", ".jinja"))


def execution_facts(execution: Execution | None) -> dict[str, Any]:
    """How each session of the training was executed; without the steps, which follow from when it was stopped."""
    if execution is None:
        return {}
    sessions = {
        f"session {number}": session.model_dump(mode="json", exclude={"first_step", "last_step"})
        for number, session in enumerate(execution.sessions, 1)
    }
    return dict(flat(sessions))


def metrics_of(registry: Registry, name: str) -> dict[str, Any]:
    """Every number of the reports that a revision holds, without the intervals."""
    found: dict[str, Any] = {}
    for prefix, path in METRICS.items():
        file = registry.file(name, path)
        values = flat(read_json(file), prefix) if file else ()
        found |= {
            key: value
            for key, value in values
            if isinstance(value, int | float) and not any(part in key for part in NOT_METRICS)
        }
    return found


def paired_difference(one: Provenance, other: Provenance) -> PairedDifference | None:
    """Both models on the documents that both were measured on; None where their losses are not on this machine."""
    tables = [losses_of(record) for record in (one, other)]
    if tables[0] is None or tables[1] is None:
        return None
    joined = tables[0].join(tables[1], "id", join_type="inner", right_suffix="_other").sort_by("id")
    if joined.num_rows == 0:
        return None
    columns = [joined[name].to_numpy().astype(np.float64) for name in ("nats", "nats_other", "bytes")]
    nats = np.column_stack(columns)
    generator = np.random.default_rng(0)
    weights = np.full(len(nats), 1 / len(nats))
    sums = generator.multinomial(len(nats), weights, size=RESAMPLES).astype(np.float64) @ nats
    low, high = np.percentile(in_bits(sums), [2.5, 97.5])
    return PairedDifference(
        difference=float(in_bits(nats.sum(axis=0, keepdims=True))[0]),
        interval_95=(float(low), float(high)),
        documents=len(nats),
        better_share=float(np.mean(nats[:, 1] < nats[:, 0])),
    )


def in_bits(sums: Any) -> Any:
    """Sums of nats of the one, nats of the other, and bytes -> the difference in bits per byte, a row each."""
    return (sums[:, 1] - sums[:, 0]) / sums[:, 2] / np.log(2)


def losses_of(record: Provenance) -> pa.Table | None:
    """id, bytes and nats of each held-out document, from data/ or DVC's cache; None where neither has them."""
    outs = (out for stage in record.pipeline for out in stage.get("outs", []))
    md5 = next((out.get("md5") for out in outs if out["path"] == DOCUMENT_LOSSES.as_posix()), None)
    path = on_this_machine(DOCUMENT_LOSSES, md5) if md5 else None
    if path is None:
        return None
    table = read_document_losses(path)
    chosen = pc.and_(pc.equal(table["set"], VALIDATION), pc.equal(table["model"], MODEL.as_posix()))
    return table.filter(chosen).select(["id", "bytes", "nats"])


def on_this_machine(path: Path, md5: str) -> Path | None:
    """A file with that md5: `path` itself, or the entry of DVC's cache."""
    if path.exists() and hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == md5:
        return path
    answer = subprocess.run([sys.executable, "-m", "dvc", "cache", "dir"], capture_output=True, text=True, check=False)
    entry = Path(answer.stdout.strip()) / "files/md5" / md5[:2] / md5[2:]
    return entry if answer.returncode == 0 and entry.is_file() else None
