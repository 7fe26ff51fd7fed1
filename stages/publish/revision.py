"""The files of a revision or an exported step, their name, which is derived from their content, their record of how
they were made, and the quality gate that decides whether a model may become `main`.

The record is not a dependency of the stage, so a new commit alone does not publish again. It has a fixed order, and no
timestamps, paths of this machine or credentials.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.formats.evaluation.report import EVALUATE_REPORT, Evaluation
from stages.formats.model_folder import MODEL, TOKENIZER, exported_models, weight_files, weights_sha256
from stages.formats.reports import REPORTS, read_json
from stages.formats.revision.execution import TRAIN_REPORT, TRAIN_SPEED, Execution
from stages.formats.revision.provenance import (
    CARD,
    CARD_FOLDER,
    EVALUATION,
    EXECUTION,
    PROVENANCE,
    RECORD_FOLDER,
    SIGNATURE_FILE,
    SOURCE_ARCHIVE,
    SPEED,
    Stages,
    is_shipped,
    outs_of,
    project_path,
    revision_name,
    revision_path,
    run_name,
    step_name,
)
from stages.formats.revision.statement import Provenance
from stages.formats.revision.verify import SIGNING_KEY, sign
from stages.formats.sources import read_sources
from stages.formats.tokens import SPLITS, TOKENS, VALIDATION
from stages.publish import lock
from stages.publish.params import GateParams, PublishParams
from stages.publish.source import archive_source, require_no_secret
from stages.runtime.atomic import known_sha256
from stages.runtime.errors import RefusedError, UserError
from stages.runtime.section import read_params_file, read_yaml


@dataclass(frozen=True, slots=True)
class Revision:
    """Files that are published under one name."""

    name: str
    """`revision_name` of `sha256`."""
    files: dict[str, Path]
    """Path in the revision -> the file on this machine; the record, the index and its signature are last."""
    sha256: dict[str, str]
    """Path in the revision -> sha256, except files that are observed (`provenance.is_observed`)."""


def name_revision(files: dict[str, Path]) -> Revision:
    """The revision of these files, without its record."""
    sha256 = {path: known_sha256(files[path]) for path in sorted(files)}
    return Revision(revision_name(sha256), {path: files[path] for path in sha256}, sha256)


def published_files() -> dict[str, Path]:
    """Path in the revision -> file of the model and its card. Raises UserError if weights or the card are missing."""
    weight_files(MODEL)
    if not (CARD_FOLDER / CARD).is_file():
        raise UserError(f"{CARD_FOLDER / CARD}: not found; run `dvc repro card`, which makes it")
    files = {file: revision_path(file) for file in (*MODEL.iterdir(), *CARD_FOLDER.iterdir()) if file.is_file()}
    return {path: file for file, path in files.items() if project_path(path) == file.as_posix()}


def card_head() -> dict[str, Any]:
    """The card's front matter."""
    _, head, _ = (CARD_FOLDER / CARD).read_text(encoding="utf-8").split("---\n", 2)
    values: dict[str, Any] = read_yaml(head)
    return values


def prompt_of(head: Mapping[str, Any]) -> str | None:
    """The prompt of the card's example; None if it has none."""
    return next((str(example["text"]) for example in head.get("widget", ())), None)


@dataclass(frozen=True, slots=True)
class ExportedStep:
    """The model after a step of a run."""

    number: int
    content: Revision
    """Its files, without a card, so that a new card does not change them."""

    def title(self, run: str) -> str:
        """The title of its commit. It names the content, because other hardware may train other weights."""
        return f"{step_name(self.number)} of run {run}: {self.content.name}"


def exported_steps() -> list[ExportedStep]:
    """The steps in the model folder, in order."""
    tokenizer = [MODEL / file.name for file in TOKENIZER.glob("*")]  # steps share the model's
    steps = []
    for step, folder in exported_models().items():
        weight_files(folder)
        files = {file.name: file for file in (*folder.iterdir(), *tokenizer) if is_shipped(file.name)}
        steps.append(ExportedStep(step, name_revision(files)))
    return steps


def training_execution() -> Execution | None:
    """The record of the training's execution; None if it is missing or of other weights than those in model/."""
    execution = Execution.find()
    return execution if execution and execution.weights_sha256 == weights_sha256() else None


def require_trained_weights() -> None:
    """Raise UserError if the weights differ from the training's record: DVC does not check what it restores."""
    if read_json(TRAIN_REPORT).get("weights_sha256") != weights_sha256():
        raise UserError(
            f"{MODEL}: its weights differ from those that training wrote ({TRAIN_REPORT}), so DVC's cache or remote "
            f"has a damaged copy: `parrotflow doctor --cache` removes it from the cache; then delete {MODEL}/ and "
            "run again"
        )


def run_of_model() -> str | None:
    """The name of the run that made the model; None without `training_execution`."""
    execution = training_execution()
    return run_name(execution.fingerprint) if execution else None


def gather_record(revision: Revision, params: PublishParams, folder: Path) -> Revision:
    """The revision with its record, which is written to `folder`.

    Raises UserError if the project differs from dvc.lock, or the record would contain a credential.
    """
    stages = lock.published_stages()
    require_trained_weights()
    (folder / RECORD_FOLDER).mkdir(exist_ok=True)
    state = archive_source(stages, folder / SOURCE_ARCHIVE, include_data=params.include_data)
    measured = {EVALUATION: EVALUATE_REPORT.read_bytes()}
    contents = lock.settings(stages) | measured | reports_of(stages)
    if TRAIN_SPEED.is_file() and read_json(TRAIN_SPEED).get("weights_sha256") == weights_sha256():
        contents[SPEED] = TRAIN_SPEED.read_bytes()
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    if execution := training_execution():
        execution.write(folder / EXECUTION)
    files = {path: folder / path for path in (*contents, SOURCE_ARCHIVE, *([EXECUTION] if execution else []))}
    hashes = revision.sha256 | {path: known_sha256(files[path]) for path in sorted(files)}
    sources = read_sources(*(TOKENS / split for split in SPLITS))
    statement = Provenance(
        revision=revision.name, files=hashes, git=state, parameters=read_params_file(), sources=sources
    )
    statement.write(folder / PROVENANCE)
    for path in [*(file for file in files if file != SOURCE_ARCHIVE), PROVENANCE]:
        require_no_secret(path.removeprefix(f"{RECORD_FOLDER}/"), (folder / path).read_bytes(), in_urls=True)
    return Revision(revision.name, revision.files | files | attested(folder / PROVENANCE), revision.sha256)


def reports_of(stages: Stages) -> dict[str, bytes]:
    """Path in the revision -> content of the metrics and curves that the stages wrote."""
    paths = (path for out in outs_of(stages) if (path := Path(out["path"])).is_relative_to(REPORTS))
    files = (file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.tsv"))))
    return {revision_path(file): file.read_bytes() for file in files if file.suffix in (".json", ".tsv")}


def attested(index: Path) -> dict[str, Path]:
    """The index and, if a key is set, its new signature."""
    if not (key := os.environ.get(SIGNING_KEY)):
        return {PROVENANCE: index}
    return {PROVENANCE: index, SIGNATURE_FILE: sign(index, Path(key).expanduser())}


PUBLISH_ANYWAY = "`parrotflow params publish.gate.allow_worse=true`, then `parrotflow run publish`"


@dataclass(frozen=True, slots=True)
class Gate:
    """The conditions for a model to become `main`, and its evaluation."""

    params: GateParams
    evaluation: Evaluation

    def check_limit(self) -> None:
        """Raise RefusedError if the model exceeds the fixed limit."""
        limit, value = self.params.bits_per_byte_at_most, self.evaluation.bits_per_byte
        if limit is not None and not value <= limit:
            raise RefusedError(
                f"publish.gate.bits_per_byte_at_most = {limit:g}: the model has {value:g}; nothing was published"
            )

    def check_not_worse(self, published: Evaluation | None, location: str, remedy: str = PUBLISH_ANYWAY) -> None:
        """Raise RefusedError if the model is worse than `main`, or cannot be compared with it.

        `published`: the evaluation of `main`; None if it has no readable one. `remedy`: how to move `main` anyway.
        """
        ours, theirs, fault = self.evaluation, published, ""
        if theirs is None:
            fault = "main holds a model without an evaluation to compare with"
        else:
            on_other_data = _documents(ours) != _documents(theirs)
            values = f"{ours.bits_per_byte:g}, main has {theirs.bits_per_byte:g}"
            remark = " (on other held-out documents)" if on_other_data else ""
            print(f"bits per byte {values}{remark}: {ours.bits_per_byte - theirs.bits_per_byte:+.6g}", flush=True)
            if (ours.lost_share > 0) != (theirs.lost_share > 0):
                loser = "the model" if ours.lost_share else "main"
                fault = (
                    f"the tokenizer of {loser} loses text (lost_share in {EVALUATE_REPORT}), so its bits per byte are "
                    "too low to compare"
                )
            elif on_other_data:
                fault = (
                    "main was evaluated on other held-out documents, so its bits per byte cannot be compared; give a "
                    "model of another corpus its own publish.name"
                )
            elif not ours.bits_per_byte <= theirs.bits_per_byte + self.params.tolerance:
                fault = f"the model has {ours.bits_per_byte:g} bits per byte, main has {theirs.bits_per_byte:g}"
        if fault and not self.params.allow_worse:
            raise RefusedError(f"{location}: {fault}; main was not moved; to move it anyway: {remedy}")


def _documents(evaluation: Evaluation) -> str:
    return evaluation.receipt.sets[VALIDATION].documents_sha256
