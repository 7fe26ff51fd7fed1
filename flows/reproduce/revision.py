"""A revision in a folder: what it records of the pipeline that made it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from stages.formats.model_folder import MODEL
from stages.formats.revision.consistency import project_path, unmade
from stages.formats.revision.execution import Execution
from stages.formats.revision.lock import LockEntry, maker_of, makers_of, overlaps, read_recorded_lock
from stages.formats.revision.provenance import (
    EXECUTION,
    INPUTS,
    PROVENANCE,
    RECORDED_LOCK,
    RECORDED_PARAMS,
    RECORDED_PIPELINE,
    RECORDED_REQUIREMENTS,
    InputListing,
    Provenance,
    record_path,
)
from stages.runtime.entry import UserError
from stages.runtime.stage_code import code_in, file_changes, library_changes

NEEDED = (RECORDED_PARAMS, RECORDED_PIPELINE, RECORDED_LOCK, RECORDED_REQUIREMENTS)
"""Without these nothing can be rebuilt."""


@dataclass(frozen=True)
class RecordedRevision:
    """A revision, and what it records."""

    asked: str
    """As the user named it."""
    folder: Path
    provenance: Provenance
    stages: dict[str, LockEntry]
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
        return makers_of(self.stages)

    def maker_of(self, path: str) -> str | None:
        """The stage that makes a file or folder of the project; None where no recorded one does."""
        return maker_of(self.makers, path)

    def is_made(self, path: str) -> bool:
        """Whether recorded stages make a dependency, or parts of it."""
        return any(overlaps(out, path) for out in self.makers)

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
        files = {path: project_path(path) for path in self.provenance.files}
        return {path: file for path, file in files.items() if file is not None and self.maker_of(file) is not None}


def read_revision(asked: str, folder: Path) -> RecordedRevision:
    """Read a revision whose hashes were checked. Raises UserError that names what the record lacks."""
    provenance = Provenance.find(folder / PROVENANCE)
    missing = [path for path in NEEDED if not (folder / path).is_file()]
    if provenance is None or missing:
        raise UserError(
            f"{asked}: holds no {missing[0] if missing else PROVENANCE}, so it does not say what it was made from "
            "(revisions of older versions of parrotflow do not); publish the model again with this version"
        )
    stages = read_recorded_lock(folder)
    return RecordedRevision(
        asked=asked,
        folder=folder,
        provenance=provenance,
        stages=in_order(stages),
        execution=Execution.find(folder / EXECUTION),
        inputs=InputListing.find(folder / INPUTS),
    )


def in_order(stages: dict[str, LockEntry]) -> dict[str, LockEntry]:
    """The stages, each after those that it depends on; else as they are listed."""
    makers = makers_of(stages)
    ordered: dict[str, LockEntry] = {}
    for stage in stages:
        ordered |= {name: stages[name] for name in (*ancestors(stages, makers, stage), stage)}
    return ordered


def ancestors(stages: dict[str, LockEntry], makers: dict[str, str], stage: str) -> Iterator[str]:
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


def require_made(revision: RecordedRevision) -> None:
    """Raise UserError where the record has no stage for a file of the model or its evaluation.

    What nothing makes again would be compared with nothing.
    """
    without = unmade(revision.provenance, revision.stages)
    if revision.training is None or without:
        raise UserError(
            f"{revision.asked}: no stage in {RECORDED_LOCK} makes {without[0] if without else MODEL}: "
            "the record is not that of the pipeline that made this revision"
        )


def changed_code(
    revision: RecordedRevision, checkout: Path, path: str
) -> list[tuple[Literal["code", "library"], str, str]]:
    """(kind, file or library, how it differs) of a stage's code in the checkout.

    Where the record does not have it, the file of code itself is named.
    """
    recorded, found = code_in(revision.folder / record_path(path)), code_in(checkout / path)
    if recorded is None or found is None:
        return [("code", path, "modified")]
    return [
        *(("code", file, how) for file, how in file_changes(recorded, found).items()),
        *(("library", name, f"{old} -> {new}") for name, old, new in library_changes(recorded, found)),
    ]
