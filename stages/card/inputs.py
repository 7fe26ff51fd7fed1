"""The stage results for the card: the model, its evaluation and its training data."""

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
"""The data set type of the model's own evaluation in the card's front matter."""


@dataclass(frozen=True)
class CardInputs:
    """Everything that the card depends on besides the section `card`."""

    config: dict[str, Any]
    samples: list[Sample]
    train: SplitSize
    validation: SplitSize
    clean: CleanReport
    training: TrainingReport
    steps: list[int]
    """The steps of `train.export_steps`."""
    data_sets: list[str]
    """Data sets on the Hub among the sources of documents."""
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
    """The reports of custom evaluations."""


def read_inputs() -> CardInputs:
    """Read all inputs. Raises UserError if one is missing or was not measured on these weights."""
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
    """The data sets on the Hub among the sources."""
    matches = (HUB_COMMIT.fullmatch(f"{source.get('repository')}@{source.get('revision')}") for source in sources)
    return sorted({match["repository"] for match in matches if match})


def require_these_weights(inputs: CardInputs) -> None:
    """Raise UserError if other weights than the training's were evaluated: DVC had restored a damaged copy."""
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
    """Raise UserError if a custom report is of other weights, not among the deps, or uses a built-in data set name."""
    built_in = {HELD_OUT, *inputs.harness.harness, *inputs.score.sets}
    built_in |= {receipt.name for receipt in inputs.generation.receipts.problem_sets.values()}
    for path, report in inputs.measurements.items():
        if report.weights_sha256 != inputs.training.weights_sha256:
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
        if report.data_set in built_in:
            raise UserError(
                f"{path}: data_set: a built-in evaluation already has results of {report.data_set}; choose another name"
            )
