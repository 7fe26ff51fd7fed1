"""A revision in a folder: what it records of the pipeline that made it."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from stages.formats.evaluation.report import EVALUATE_RECEIPT, EVALUATE_REPORT
from stages.formats.model_folder import MODEL
from stages.formats.revision.execution import Execution, read_execution
from stages.formats.revision.inputs import InputListing, read_inputs
from stages.formats.revision.layout import (
    CARD,
    CURVES,
    EVALUATION,
    EVALUATION_RECEIPT,
    EXECUTION,
    INPUTS,
    PROVENANCE,
    RECORD,
    RECORDED_LOCK,
    RECORDED_PARAMS,
    RECORDED_PIPELINE,
    RECORDED_REQUIREMENTS,
    RECORDED_VERSIONS,
)
from stages.formats.revision.provenance import Provenance, read_provenance
from stages.runtime.entry import UserError

NEEDED = (RECORDED_PARAMS, RECORDED_PIPELINE, RECORDED_LOCK, RECORDED_VERSIONS, RECORDED_REQUIREMENTS)
"""Without these nothing can be rebuilt."""

Entry = dict[str, Any]
"""Of a stage in dvc.lock: cmd, deps, params, outs."""


@dataclass(frozen=True)
class Revision:
    """A revision, and what it records."""

    asked: str
    """As the user named it."""
    folder: Path
    provenance: Provenance
    stages: dict[str, Entry]
    """Of all stages that led to the model and its evaluation, each after those that it depends on."""
    execution: Execution | None
    """How the training was executed."""
    inputs: InputListing | None

    @property
    def work(self) -> Path:
        """The folder in which it is reproduced."""
        return self.folder.parent

    @property
    def name(self) -> str:
        """The hash that it is called by."""
        return self.provenance.revision

    @cached_property
    def makers(self) -> dict[str, str]:
        """Each output of the pipeline -> the stage that makes it."""
        return {out["path"]: stage for stage, entry in self.stages.items() for out in entry.get("outs", [])}

    def maker_of(self, path: str) -> str | None:
        """The stage that makes a file of the project; None where no recorded one does."""
        return next((stage for out, stage in self.makers.items() if overlaps(out, path)), None)

    @property
    def training(self) -> str | None:
        """The stage that makes the weights."""
        return self.maker_of(MODEL.as_posix())

    @property
    def data_stages(self) -> list[str]:
        """The stages that the training depends on, directly or through others."""
        return [] if self.training is None else list(ancestors(self.stages, self.makers, self.training))

    @cached_property
    def published(self) -> dict[str, str]:
        """Each file of the revision that the pipeline made -> the same file in the project."""
        no_model = {CARD, CURVES, EVALUATION, EVALUATION_RECEIPT}
        files = {path: f"{MODEL}/{path}" for path in self.provenance.files if "/" not in path and path not in no_model}
        for path, report in ((EVALUATION, EVALUATE_REPORT), (EVALUATION_RECEIPT, EVALUATE_RECEIPT)):
            files |= {path: report.as_posix()} if path in self.provenance.files else {}
        recorded = (path for path in self.provenance.files if path.startswith(f"{RECORD}/"))
        files |= {path: path.removeprefix(f"{RECORD}/") for path in recorded}
        return {path: file for path, file in files.items() if self.maker_of(file) is not None}


def read_revision(asked: str, folder: Path) -> Revision:
    """Read a revision whose hashes were checked. Raises UserError that names what the record lacks."""
    provenance = read_provenance(folder / PROVENANCE)
    missing = [path for path in NEEDED if not (folder / path).is_file()]
    if provenance is None or missing:
        raise UserError(
            f"{asked}: holds no {missing[0] if missing else PROVENANCE}, so it does not say what it was made from "
            "(revisions of older versions of parrotflow do not); publish the model again with this version"
        )
    # YAML 1.2 as DVC writes it, in which 1e-05 is a number.
    stages = YAML(typ="safe", pure=True).load(folder / RECORDED_LOCK).get("stages") or {}
    for out in (out["path"] for entry in stages.values() for out in entry.get("outs", [])):
        if is_outside(out):
            raise UserError(f"{asked}: {RECORDED_LOCK} has the output {out}, which is outside of the project")
    return Revision(
        asked=asked,
        folder=folder,
        provenance=provenance,
        stages=in_order(stages),
        execution=read_execution(folder / EXECUTION),
        inputs=read_inputs(folder / INPUTS),
    )


def in_order(stages: dict[str, Entry]) -> dict[str, Entry]:
    """The stages, each after those that it depends on; else as they are listed."""
    makers = {out["path"]: stage for stage, entry in stages.items() for out in entry.get("outs", [])}
    ordered: dict[str, Entry] = {}
    for stage in stages:
        ordered |= {name: stages[name] for name in (*ancestors(stages, makers, stage), stage)}
    return ordered


def ancestors(stages: dict[str, Entry], makers: dict[str, str], stage: str) -> Iterator[str]:
    """The stages that a stage depends on, each after its own."""
    seen: set[str] = {stage}

    def above(name: str) -> Iterator[str]:
        for dep in stages[name].get("deps", []):
            for maker in [made_by for out, made_by in makers.items() if overlaps(out, dep["path"])]:
                if maker not in seen:
                    seen.add(maker)
                    yield from above(maker)
                    yield maker

    return above(stage)


def is_outside(path: str) -> bool:
    """Whether a path that should be relative to the project may lead out of it."""
    return Path(path).is_absolute() or ".." in Path(path).parts


def overlaps(path: str, other: str) -> bool:
    """Whether the paths are equal, or one contains the other."""
    return path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/")


def hash_of(entry: Entry) -> str | None:
    """The hash that dvc.lock has of a dependency or output."""
    return entry.get(entry.get("hash", "md5"))


def require_consistent(revision: Revision) -> None:
    """Compare the published files with the hashes that the record has of them as outputs.

    The hashes of the provenance were checked before; who edits a report and writes its new hash there is found here.
    So is a record without the stage of a file: what nothing makes again would be compared with nothing.
    """
    of_stages = {path for path in revision.provenance.files if "/" not in path} - {CARD, CURVES}
    unmade = sorted(of_stages - revision.published.keys())
    if revision.training is None or unmade:
        raise UserError(
            f"{revision.asked}: no stage in {RECORDED_LOCK} makes {unmade[0] if unmade else MODEL}: "
            "the record is not that of the pipeline that made this revision"
        )
    hashes = {out["path"]: hash_of(out) for entry in revision.stages.values() for out in entry.get("outs", [])}
    for path, file in revision.published.items():
        if file in hashes and md5(revision.folder / path) != hashes[file]:
            raise UserError(
                f"{revision.asked}: {path} is not what the pipeline made: {RECORDED_LOCK} has another hash of {file} "
                f"(stage {revision.maker_of(file)}); it was edited afterwards"
            )
    weights = revision.provenance.weights_sha256
    if revision.execution is not None and revision.execution.weights_sha256 != weights:
        raise UserError(f"{revision.asked}: {EXECUTION} belongs to other weights than {weights[:16]}")


def md5(path: Path) -> str:
    """As DVC hashes a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
