"""The results of stages that the card is written from: the model, its evaluation and its training data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.formats.cleaning import CleanReport
from stages.formats.evaluation.generation import GENERATE_REPORT, SAMPLES, Generation, Sample, read_samples
from stages.formats.evaluation.report import EVALUATE_REPORT, Evaluation, Yardstick
from stages.formats.evaluation.scores import (
    HARNESS_REPORT,
    SCORE_REPORT,
    HarnessReport,
    Measurements,
    ScoreReport,
    read_measurements,
)
from stages.formats.model_folder import CONFIG, MODEL, exported_models
from stages.formats.reports import Report, read_json
from stages.formats.sources import SplitSize, read_split
from stages.formats.tokens import TOKENS, TRAIN, VALIDATION
from stages.formats.training import TrainingReport
from stages.runtime.errors import UserError
from stages.runtime.hub import HUB_COMMIT
from stages.runtime.preflight import DVC_FILE, lies_in
from stages.runtime.section import read_params_file
from stages.runtime.stage import inputs_of

REPORTS_READ = (CleanReport.path, TrainingReport.path, EVALUATE_REPORT, GENERATE_REPORT, HARNESS_REPORT, SCORE_REPORT)
ALWAYS_READ = (MODEL, SAMPLES, TOKENS / TRAIN, TOKENS / VALIDATION, Yardstick.path, *REPORTS_READ)

HELD_OUT = "held-out"
"""The type of data set of the model's own evaluation, as the head of the card names it."""


@dataclass(frozen=True)
class CardInputs:
    """Everything that a card is written from: results of stages, so that the same model has the same card."""

    config: dict[str, Any]
    samples: list[Sample]
    train: SplitSize
    validation: SplitSize
    clean: CleanReport
    training: TrainingReport
    steps: list[int]
    """After which the model was exported too."""
    data_sets: list[str]
    """Of the Hub, that the documents are from."""
    training_params: dict[str, Any]
    """The section `train`."""
    cleaning_params: dict[str, Any]
    """The section `clean`."""
    evaluation: Evaluation
    yardstick: Yardstick
    generation: Generation
    score: ScoreReport
    harness: HarnessReport
    measurements: dict[Path, Measurements]
    """The reports of other evaluations, which say themselves what they measured."""


def read_inputs() -> CardInputs:
    """Read all inputs. Raises UserError that names a missing one."""
    for path in ALWAYS_READ:
        if not path.exists():
            raise UserError(f"{path}: not found; run `dvc repro`, which makes it first")
    params = read_params_file()
    inputs = CardInputs(
        config=read_json(MODEL / CONFIG),
        samples=read_samples(),
        train=read_split(TOKENS / TRAIN),
        validation=read_split(TOKENS / VALIDATION),
        clean=CleanReport.read(),
        training=TrainingReport.read(),
        steps=list(exported_models()),
        data_sets=data_sets_of(params["collect"]["sources"]),
        training_params=params.get("train", {}),
        cleaning_params=params["clean"],
        evaluation=Evaluation.read(),
        yardstick=Yardstick.read(),
        generation=Generation.read(),
        score=ScoreReport.read(),
        harness=HarnessReport.read(),
        measurements=read_measurements(),
    )
    require_these_weights(inputs)
    require_declared(inputs)
    return inputs


def data_sets_of(sources: list[dict[str, Any]]) -> list[str]:
    """The data sets of the Hub among the sources."""
    named = (HUB_COMMIT.fullmatch(f"{one.get('repository')}@{one.get('revision')}") for one in sources)
    return sorted({found["repository"] for found in named if found})


def require_these_weights(inputs: CardInputs) -> None:
    """Reject an evaluation of other weights than the training's: DVC had restored a damaged copy for it."""
    scored = inputs.harness.scored_with
    weights: dict[type[Report], str] = {
        Evaluation: inputs.evaluation.receipt.models[MODEL.as_posix()].weights_sha256,
        Generation: inputs.generation.receipts.weights_sha256,
        HarnessReport: scored.weights_sha256 if scored else inputs.training.weights_sha256,
    }
    for report, measured in weights.items():
        if measured != inputs.training.weights_sha256:
            raise UserError(
                f"{report.path}: was measured on a damaged copy of {MODEL}/, not on the weights of the training; run "
                f"`dvc repro --force --single-item {report.stage}` to measure again"
            )


def require_declared(inputs: CardInputs) -> None:
    """Reject a custom evaluation report of other weights, that is not listed, or whose data set is a built-in one."""
    for path, found in inputs.measurements.items():
        if found.weights_sha256 != inputs.training.weights_sha256:
            raise UserError(
                f"{path}: was not measured on the weights in {MODEL}/: list {MODEL} among the deps of its "
                f"stage in {DVC_FILE} and run `dvc repro`"
            )
        stage = inputs_of("stages.card")
        if stage and not lies_in(path, stage.deps):
            raise UserError(
                f"{path}: {DVC_FILE} does not list it among the deps of {stage.stage}, so DVC would not "
                "notice that it changes: add it there"
            )
        if found.data_set in built_in_data_sets(inputs):
            raise UserError(
                f"{path}: data_set: a built-in evaluation already has results of {found.data_set}; choose another name"
            )


def built_in_data_sets(inputs: CardInputs) -> set[str]:
    """The names under which the card has results of the pipeline's own evaluations."""
    problem_sets = {receipt.name for receipt in inputs.generation.receipts.problem_sets.values()}
    return {HELD_OUT, *inputs.harness.harness, *inputs.score.sets, *problem_sets}
