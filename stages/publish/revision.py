"""The files of a revision or of an exported step of a run, and their name, which is derived from their content."""

import re
from dataclasses import dataclass
from pathlib import Path

from stages.formats.model_folder import MODEL, TOKENIZER, weight_files, weights_sha256
from stages.formats.revision.execution import Execution
from stages.formats.revision.provenance import (
    PROVENANCE,
    SHIPPED,
    SIGNATURE,
    Provenance,
    is_observed,
    is_shipped,
    revision_name,
    run_name,
    step_name,
)
from stages.runtime.atomic import file_sha256
from stages.runtime.entry import UserError

STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True)
class Revision:
    """What is to be published."""

    name: str
    """`revision_name`: from the files' names and hashes, without those that are observed."""
    files: dict[str, Path]
    """Path in the revision -> the file on this machine; the record, the index and what attests them last."""
    sha256: dict[str, str]
    """Path in the revision -> sha256, of the files that are not observed."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.stat().st_size for file in self.files.values())


def name_revision(files: dict[str, Path]) -> Revision:
    """The revision that consists of these files; its record is gathered afterwards."""
    sha256 = {path: file_sha256(files[path]) for path in sorted(files)}
    return Revision(revision_name(sha256), {path: files[path] for path in sha256}, sha256)


def with_kept_record(revision: Revision, folder: Path) -> Revision | None:
    """The revision with the record that was published with it before; None where `folder` does not have it.

    Raises UserError where a file of that record is not as it was published, or an older version wrote it.
    """
    provenance = Provenance.find(folder / PROVENANCE)
    if provenance is None or provenance.revision != revision.name:
        return None
    again = f"delete {folder} and run `dvc repro -f -s publish`"
    if not provenance.checksum:
        raise UserError(
            f"{folder / PROVENANCE}: was written by an older version of parrotflow, without a checksum; {again}"
        )
    record = [path for path in provenance.files if is_observed(path)]
    for path in record:
        if not (folder / path).is_file() or file_sha256(folder / path) != provenance.files[path]:
            raise UserError(f"{folder / path}: differs from what was published with this revision; {again}")
    attested = [path for path in (PROVENANCE, SIGNATURE) if (folder / path).is_file()]
    return Revision(
        revision.name, revision.files | {path: folder / path for path in (*record, *attested)}, revision.sha256
    )


def model_files(model: Path) -> dict[str, Path]:
    """The files of a model folder that are published. Raises UserError if there are no weights among them."""
    weight_files(model)
    return {path.name: path for path in sorted(model.iterdir()) if path.is_file() and is_shipped(path.name)}


@dataclass(frozen=True, slots=True)
class ExportedStep:
    """The model after some steps of a run."""

    number: int
    content: Revision
    """Its files. No card: a step's commit does not change with the model's card."""

    def title(self, run: str) -> str:
        """Of its commit. It names the content: other hardware may train other weights under the same fingerprint."""
        return f"{step_name(self.number)} of run {run}: {self.content.name}"


def model_title(run: str, revision: Revision) -> str:
    """Of the commit of the final model."""
    return f"model of run {run}: {revision.name}"


def exported_steps() -> list[ExportedStep]:
    """The steps in the model folder, in order."""
    found = ((STEP.fullmatch(folder.name), folder) for folder in MODEL.glob("step-*"))
    return sorted((read_step(int(name[1]), folder) for name, folder in found if name), key=lambda step: step.number)


def read_step(number: int, folder: Path) -> ExportedStep:
    """A step from its folder. Raises UserError where it holds no model."""
    return ExportedStep(number, name_revision(model_files(folder) | tokenizer_files()))


def tokenizer_files() -> dict[str, Path]:
    """The tokenizer's files by name."""
    return {file.name: file for pattern in SHIPPED for file in TOKENIZER.glob(pattern)}


def run_of_model() -> str | None:
    """The name of the run that made the model; None where no execution of these weights is recorded."""
    execution = Execution.find()
    return run_name(execution.fingerprint) if execution and execution.weights_sha256 == weights_sha256() else None
