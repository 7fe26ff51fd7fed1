"""What is to be published: the files of a revision or of an exported step of a run, and their name, which is derived
from their content; and the quality gate, which says what may become `main`. The stage itself checks it, however the
stage is started."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from stages.formats.evaluation.report import EVALUATE_REPORT, Evaluation
from stages.formats.model_folder import MODEL, TOKENIZER, combined_sha256, exported_models, weight_files
from stages.formats.revision.execution import Execution
from stages.formats.revision.provenance import (
    CARD,
    CARD_FOLDER,
    CURVES,
    SHIPPED,
    is_shipped,
    revision_name,
    run_name,
    step_name,
)
from stages.publish.params import GateParams
from stages.runtime.atomic import file_sha256
from stages.runtime.entry import RefusedError, UserError


def file_hash(path: Path) -> str:
    """The sha256 of a file, which is read unless this process has read it and it has not changed since."""
    state = path.stat()
    return _hash(path.absolute(), state.st_ino, state.st_size, state.st_mtime_ns)


@cache
def _hash(path: Path, *_: int) -> str:
    return file_sha256(path)


@dataclass(frozen=True, slots=True)
class Revision:
    """What is to be published."""

    name: str
    """`revision_name`: from the files' names and hashes, without those that are observed."""
    files: dict[str, Path]
    """Path in the revision -> the file on this machine; the record, the index and what attests them last."""
    sha256: dict[str, str]
    """Path in the revision -> sha256, of the files that are not observed."""


def name_revision(files: dict[str, Path]) -> Revision:
    """The revision that consists of these files; its record is gathered afterwards."""
    sha256 = {path: file_hash(files[path]) for path in sorted(files)}
    return Revision(revision_name(sha256), {path: files[path] for path in sha256}, sha256)


def model_files(model: Path) -> dict[str, Path]:
    """The files of a model folder that are published. Raises UserError if there are no weights among them."""
    weight_files(model)
    return {path.name: path for path in sorted(model.iterdir()) if path.is_file() and is_shipped(path.name)}


def card_files() -> dict[str, Path]:
    """The card and its picture. Raises UserError if there is no card."""
    if not (CARD_FOLDER / CARD).is_file():
        raise UserError(f"{CARD_FOLDER / CARD}: not found; run `dvc repro card`, which makes it")
    return {name: CARD_FOLDER / name for name in (CARD, CURVES) if (CARD_FOLDER / name).is_file()}


def card_head() -> dict[str, Any]:
    """The values at the head of the card."""
    _, head, _ = (CARD_FOLDER / CARD).read_text(encoding="utf-8").split("---\n", 2)
    values: dict[str, Any] = yaml.safe_load(head)
    return values


def prompt_of(head: Mapping[str, Any]) -> str | None:
    """The prompt of the card's example; None if it has none."""
    return next((str(example["text"]) for example in head.get("widget", ())), None)


@dataclass(frozen=True, slots=True)
class ExportedStep:
    """The model after some steps of a run."""

    number: int
    content: Revision
    """Its files, without a card: a step does not change with the model's card."""

    def title(self, run: str) -> str:
        """The title of its commit. It names the content: other hardware may train other weights in the same run."""
        return f"{step_name(self.number)} of run {run}: {self.content.name}"


def exported_steps() -> list[ExportedStep]:
    """The steps in the model folder, in order."""
    # Steps have no tokenizer of their own.
    tokenizer = {file.name: MODEL / file.name for pattern in SHIPPED for file in TOKENIZER.glob(pattern)}
    return [
        ExportedStep(step, name_revision(model_files(folder) | tokenizer)) for step, folder in exported_models().items()
    ]


def training_execution() -> Execution | None:
    """How the training was executed; None where that is recorded of other weights than those in model/."""
    execution = Execution.find()
    return execution if execution and execution.weights_sha256 == weights_hash() else None


def weights_hash() -> str:
    """What `model_folder.weights_sha256` of the model is, without reading it again."""
    return combined_sha256([file_hash(file) for file in weight_files(MODEL)])


def run_of_model() -> str | None:
    """The name of the run that made the model; None where no execution of these weights is recorded."""
    execution = training_execution()
    return run_name(execution.fingerprint) if execution else None


@dataclass(frozen=True, slots=True)
class Gate:
    """The conditions, and the evaluation of the model that is to become `main`."""

    params: GateParams
    evaluation: Evaluation
    advice: str = "nothing was published; to replace it, set publish.gate.allow_worse to true"
    """What a refusal ends with."""
    compared: set[float] = field(default_factory=set)
    """With which values it was compared, so that a repeated check says so once."""

    def check_limit(self) -> None:
        """Raise RefusedError if the model exceeds the fixed limit."""
        limit, value = self.params.bits_per_byte_at_most, self.evaluation.bits_per_byte
        if limit is not None and not value <= limit:
            raise RefusedError(
                f"publish.gate.bits_per_byte_at_most = {limit:g}: the model has {value:g}; nothing was published"
            )

    def check_not_worse(self, published: Evaluation | None, location: str) -> None:
        """Raise RefusedError if the model is worse than `published`, the evaluation of what `main` leads to now.

        None means that `main` holds a model without a readable evaluation: that is refused too.
        """
        allowed, ours, theirs = self.params.allow_worse, self.evaluation, published
        if theirs is None:
            if not allowed:
                raise RefusedError(
                    f"{location}: main holds a model without an evaluation to compare with; {self.advice}"
                )
            return
        if not allowed and (ours.lost_share > 0) != (theirs.lost_share > 0):
            loser = "the model" if ours.lost_share else "main"
            raise RefusedError(
                f"{location}: the tokenizer of {loser} loses text (lost_share in {EVALUATE_REPORT}), so its bits per "
                f"byte are too few to be compared; {self.advice}"
            )
        on_other_data = (ours.documents, ours.bytes) != (theirs.documents, theirs.bytes)
        other_data = " (on other held-out documents)" if on_other_data else ""
        self.say(theirs.bits_per_byte, other_data)
        if not allowed and not ours.bits_per_byte <= theirs.bits_per_byte + self.params.tolerance:
            another = "; a model of another corpus takes a publish.name of its own" if on_other_data else ""
            raise RefusedError(
                f"{location}: the model has {ours.bits_per_byte:g} bits per byte, main has {theirs.bits_per_byte:g}"
                f"{other_data}; {self.advice}{another}"
            )

    def say(self, theirs: float, other_data: str) -> None:
        """Print both values with their difference, once."""
        if theirs not in self.compared:
            self.compared.add(theirs)
            ours = self.evaluation.bits_per_byte
            print(f"bits per byte {ours:g}, main has {theirs:g}{other_data}: {ours - theirs:+.6g}", flush=True)
