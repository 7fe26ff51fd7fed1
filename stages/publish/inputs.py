"""What publishing reads: the trained model, its evaluation and what it was trained on."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.formats.evaluation.generation import GENERATE_REPORT, SAMPLES, Generation, Sample, read_samples
from stages.formats.evaluation.harness import HARNESS_REPORT, HarnessReport
from stages.formats.evaluation.measurements import Measurements, read_measurements
from stages.formats.evaluation.report import EVALUATE_RECEIPT, EVALUATE_REPORT, Evaluation, EvaluationReceipt
from stages.formats.evaluation.verdicts import SCORE_REPORT, ScoreReport
from stages.formats.model_folder import CONFIG, MODEL, weights_sha256
from stages.formats.reports import REPORTS, read_json, receipt_path
from stages.formats.revision.lock import Stages, is_within, maker_of, makers_of
from stages.formats.splits import TRAIN, VALIDATION
from stages.formats.tokens import TOKENS, TokenStore
from stages.publish.lock import LOCK, publish_deps, read_lock, recorded_section, recorded_versions
from stages.runtime.entry import UserError
from stages.runtime.inputs import DVC_FILE

CLEAN_REPORT = REPORTS / "clean.json"
TRAIN_REPORT = REPORTS / "train.json"

REPORTS_READ = (
    CLEAN_REPORT,
    TRAIN_REPORT,
    EVALUATE_REPORT,
    EVALUATE_RECEIPT,
    *(path for report in (GENERATE_REPORT, HARNESS_REPORT, SCORE_REPORT) for path in (report, receipt_path(report))),
)
ALWAYS_READ = (MODEL, SAMPLES, TOKENS / TRAIN, TOKENS / VALIDATION, *REPORTS_READ)

HELD_OUT = "held-out"
"""The type of data set of the model's own evaluation, as the head of the card names it."""


@dataclass
class TextAmount:
    """An amount of text."""

    documents: int = 0
    bytes: int = 0


@dataclass
class SplitSize:
    """What one split of the corpus holds."""

    total: TextAmount
    tokens: int
    sources: dict[tuple[str, str], TextAmount] = field(default_factory=lambda: defaultdict(TextAmount))
    """(source, revision) -> amount."""
    licenses: dict[str, TextAmount] = field(default_factory=lambda: defaultdict(TextAmount))
    """SPDX expression, or empty where none is known -> amount."""
    licenses_of: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    """(source, revision) -> the licences of its documents."""

    @property
    def documents_of_source(self) -> Counter[str]:
        """Source -> documents of all its revisions."""
        counts: Counter[str] = Counter()
        for (source, _), amount in self.sources.items():
            counts[source] += amount.documents
        return counts


@dataclass(frozen=True)
class CardInputs:
    """Everything that a card is written from: results of stages, so that the same model has the same card."""

    config: dict[str, Any]
    samples: list[Sample]
    train: SplitSize
    validation: SplitSize
    clean: dict[str, Any]
    training: dict[str, Any]
    steps: list[int]
    """After which the model was exported too."""
    recorded_training: dict[str, Any]
    """Its parameters, as dvc.lock records them; empty where it does not."""
    recorded_cleaning: dict[str, Any]
    """Likewise."""
    recorded_versions: dict[str, str]
    """Library -> version, of those that training depends on; likewise."""
    evaluation: Evaluation
    generation: Generation
    score: ScoreReport
    harness: HarnessReport
    evaluation_receipt: EvaluationReceipt
    measurements: dict[Path, Measurements]
    """The reports of other evaluations, which say themselves what they measured."""


def read_inputs() -> CardInputs:
    """Read all of it. Raises UserError that names what is missing, or was measured on other weights."""
    for path in ALWAYS_READ:
        if not path.exists():
            raise UserError(f"{path}: not found; run `dvc repro`, which makes it first")
    stages = read_lock()
    trainer = maker_of(makers_of(stages), MODEL.as_posix())
    inputs = CardInputs(
        config=read_json(MODEL / CONFIG),
        samples=read_samples(),
        train=read_split(TOKENS / TRAIN),
        validation=read_split(TOKENS / VALIDATION),
        clean=read_json(CLEAN_REPORT),
        training=read_json(TRAIN_REPORT),
        steps=sorted(int(path.name.removeprefix("step-")) for path in MODEL.glob("step-*")),
        recorded_training=recorded_section(stages, "train"),
        recorded_cleaning=recorded_section(stages, "clean"),
        recorded_versions=recorded_versions({trainer: stages[trainer]} if trainer else {}),
        evaluation=Evaluation.read(),
        generation=Generation.read(),
        score=ScoreReport.read(),
        harness=HarnessReport.read(),
        evaluation_receipt=EvaluationReceipt.read(),
        measurements=read_measurements(),
    )
    require_measured(inputs, weights_sha256())
    require_declared(inputs, stages)
    return inputs


def paths_read() -> list[Path]:
    """The files and folders that a publication is made from."""
    return [*ALWAYS_READ, *(path for report in read_measurements() for path in (report, receipt_path(report)))]


def require_measured(inputs: CardInputs, weights: str) -> None:
    """Raise UserError if a report is of other weights: after a training that only `publish` followed."""
    measured = {
        EVALUATE_RECEIPT: inputs.evaluation_receipt.models[str(MODEL)].weights_sha256,
        receipt_path(GENERATE_REPORT): inputs.generation.receipts.weights_sha256,
        receipt_path(SCORE_REPORT): inputs.score.weights_sha256,  # empty where the completions came from elsewhere
        receipt_path(HARNESS_REPORT): inputs.harness.scored_with.weights_sha256 if inputs.harness.scored_with else "",
    } | {receipt_path(path): found.weights_sha256 for path, found in inputs.measurements.items()}
    others = [str(report) for report, found in measured.items() if found not in ("", weights)]
    if others:
        raise UserError(
            f"{', '.join(others)}: measured on other weights than those in {MODEL}/; run `dvc repro publish`, which "
            "brings the stages before it up to date too"
        )


def require_declared(inputs: CardInputs, stages: Stages) -> None:
    """Reject a custom evaluation report that no stage declares, or whose data set name collides with a built-in one."""
    made, deps = makers_of(stages), publish_deps()
    for path, found in inputs.measurements.items():
        files = [path.as_posix(), receipt_path(path).as_posix()]
        if unmade := ", ".join(file for file in files if file not in made):
            raise UserError(
                f"{unmade}: no stage in {LOCK} makes it, so a revision would have its numbers and no record of it: in "
                f"{DVC_FILE} add it to its stage's metrics or plots and run `dvc repro`, or delete it"
            )
        unread = [file for file in files if deps is not None and not any(is_within(file, dep) for dep in deps)]
        if unread:
            raise UserError(
                f"{', '.join(unread)}: {DVC_FILE} does not list it among the deps of publish, so DVC would not notice "
                "that it changes: add it there"
            )
        if found.data_set in built_in_data_sets(inputs):
            raise UserError(
                f"{receipt_path(path)}: data_set: an evaluation of the pipeline has results of {found.data_set} "
                "already, which these could be taken for: give it another name"
            )


def built_in_data_sets(inputs: CardInputs) -> set[str]:
    """The names under which the card has results of the pipeline's own evaluations."""
    problem_sets = {receipt.name for receipt in inputs.generation.receipts.problem_sets.values()}
    repositories = {name.partition("@")[0] for name in problem_sets}
    return {HELD_OUT, *inputs.harness.harness, *inputs.score.sets, *problem_sets, *repositories}


def read_split(folder: Path) -> SplitSize:
    """Count a token store's documents by source and by licence."""
    store = TokenStore(folder)
    split = SplitSize(TextAmount(store.manifest.documents, store.manifest.bytes), store.manifest.tokens)
    for info in store.document_infos():
        for amount in (split.sources[info["source"], info["revision"]], split.licenses[info["license"]]):
            amount.documents += 1
            amount.bytes += info["bytes"]
        split.licenses_of[info["source"], info["revision"]].add(info["license"])
    return split
