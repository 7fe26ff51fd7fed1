"""Exported steps of a run: the model after some steps, with the tokenizer, and the titles of their commits."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stages.formats.model_folder import MODEL, TOKENIZER, weights_sha256
from stages.formats.revision.execution import Execution
from stages.formats.revision.layout import SHIPPED, revision_name, run_name, step_name
from stages.publish.revision import Revision, model_files
from stages.runtime.hashes import file_sha256

STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True)
class Step:
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


def exported_steps(model: Path = MODEL) -> list[Step]:
    """The steps in a model folder, in order."""
    return sorted(_steps(model), key=lambda step: step.number)


def _steps(model: Path) -> Iterator[Step]:
    for folder in model.glob("step-*"):
        if found := STEP.fullmatch(folder.name):
            yield read_step(int(found[1]), folder)


def read_step(number: int, folder: Path) -> Step:
    """A step from its folder. Raises UserError where it holds no model."""
    files = model_files(folder) | tokenizer_files()
    sha256 = {path: file_sha256(files[path]) for path in sorted(files)}
    return Step(number, Revision(revision_name(sha256), {path: files[path] for path in sha256}, sha256))


def tokenizer_files() -> dict[str, Path]:
    """The tokenizer's files by name."""
    return {file.name: file for pattern in SHIPPED for file in TOKENIZER.glob(pattern)}


def run_of_model() -> str | None:
    """The name of the run that made the model; None where no execution of these weights is recorded."""
    execution = Execution.find()
    return run_name(execution.fingerprint) if execution and execution.weights_sha256 == weights_sha256() else None
