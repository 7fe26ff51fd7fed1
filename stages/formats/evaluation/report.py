"""The evaluation report: how well a model predicts held-out text. evaluate writes it, card and publish read it.

reports/evaluate.json        the metrics, and in `receipt` what they were measured on, with what, and how
reports/yardstick.json       what compressors need for the same documents; the stage yardstick writes it
reports/loss_by_position/    a table for each set: what `dvc plots diff` compares
"""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, TypeAlias

from pydantic import BaseModel

from stages.formats.reports import Report, significant

EVALUATE_REPORT = Path("reports/evaluate.json")
LOSS_BY_POSITION = Path("reports/loss_by_position")
DOCUMENT_LOSSES = Path("data/document_losses.parquet")
"""One row per set, model and document, in that order: set, model, id, source, path, bytes, tokens, nats. Every number
of the report can be recomputed from it."""

Interval: TypeAlias = tuple[float, float]
"""The ends of a 95 % interval."""

MIN_DOCUMENTS = 10
"""Documents, or problems: over fewer the spread is not known, and no interval is given."""

MAX_SOURCES = 50
"""Sources in a report: those with most text. `data/document_losses.parquet` has all of them."""


def t_interval(value: float, error: float, count: int) -> Interval | None:
    """Student's t interval, given the standard error over `count` documents; None for fewer than `MIN_DOCUMENTS`."""
    if count < MIN_DOCUMENTS:
        return None
    degrees = count - 1
    quantile = 1.959964 + 2.37232 / degrees + 2.82257 / degrees**2 + 2.55594 / degrees**3  # Abramowitz-Stegun 26.7.5
    return significant(value - quantile * error), significant(value + quantile * error)


def score_interval(value: float, error: float, count: int) -> Interval | None:
    """As `t_interval`; exact (Clopper and Pearson 1934) for a share of 0 or 1, which has no spread to go by."""
    if error or value not in (0, 1) or count < MIN_DOCUMENTS:
        return t_interval(value, error, count)
    other_end = significant(1 - 0.025 ** (1 / count))
    return (0.0, other_end) if value == 0 else (significant(1 - other_end), 1.0)


class Intervals(BaseModel, frozen=True, extra="forbid"):
    """Intervals over documents, by the name of the metric; null of fewer than ten documents."""

    bits_per_byte: Interval | None
    loss: Interval | None
    perplexity: Interval | None
    bits_per_byte_per_source: dict[str, Interval | None]
    bits_per_byte_per_length: dict[str, Interval | None]


class BaselineComparison(BaseModel, frozen=True, extra="forbid"):
    """The model compared with a baseline, on the same documents."""

    bits_per_byte: float
    """The baseline's bits per byte."""
    difference: float
    """Bits per byte of the model less those of the baseline: below 0 the model is better."""
    difference_interval_95: Interval | None
    """Paired: over the differences by document. Null of fewer than ten documents."""


class HeldOutMetrics(BaseModel, frozen=True, extra="forbid"):
    """The metrics of one set of documents."""

    bits_per_byte: float
    loss: float
    """Nats per token."""
    perplexity: float
    lost_share: float
    """The share of documents that do not come back from their tokens. Above 0 the tokenizer loses text, and the bits
    per byte are too few."""
    interval_95: Intervals
    documents: int
    tokens: int
    bytes: int
    bits_per_byte_per_source: dict[str, float]
    """Of the `MAX_SOURCES` sources with most text."""
    bits_per_byte_per_length: dict[str, float]
    """Tokens of the document, in buckets of powers of two (`000512-001023`) -> bits per byte."""
    compared: dict[str, BaselineComparison]
    """A model of `evaluate.baselines` -> how it compares."""


class SetReceipt(BaseModel, frozen=True, extra="forbid"):
    """The contents of one set."""

    path: str
    documents_sha256: str
    """Hash of the documents' ids, a line each; an id is the sha256 of the text."""
    documents_per_source: dict[str, int]
    """Of the `MAX_SOURCES` sources with most documents."""
    documents_per_length: dict[str, int]


class ModelReceipt(BaseModel, frozen=True, extra="forbid"):
    """A model that was scored, and its windows."""

    weights_sha256: str
    revision: str | None
    """The commit on the Hub; null for a folder."""
    context_length: int
    """Tokens."""
    stride: int
    """Tokens."""


class EvaluationReceipt(BaseModel, frozen=True, extra="forbid"):
    """The data, models and settings behind the numbers of the report."""

    convention: str
    """How the metrics were computed, in prose."""
    sets: dict[str, SetReceipt]
    models: dict[str, ModelReceipt]
    versions: dict[str, str]
    """Versions of the libraries that compute a loss."""
    bootstrap_resamples: int
    bootstrap_seed: int


class Evaluation(HeldOutMetrics, Report):
    """The metrics of the validation split, and of each further set."""

    path: ClassVar[Path] = EVALUATE_REPORT
    stage: ClassVar[str] = "evaluate"

    sets: dict[str, HeldOutMetrics]
    """A set of `evaluate.sets` or `evaluate.answers` -> its metrics."""
    receipt: EvaluationReceipt


class Yardstick(Report):
    """Bits per byte of compressors on the validation split, each document by itself."""

    path: ClassVar[Path] = Path("reports/yardstick.json")
    stage: ClassVar[str] = "yardstick"

    bits_per_byte: dict[str, float]
    """Compressor -> after reading `training_bytes` of the training text."""
    bits_per_byte_cold: dict[str, float]
    """Compressor -> having read nothing."""
    training_bytes: int
    versions: dict[str, str]
    """Versions of the libraries that compress."""
    convention: str
    """What was compressed, and how, in prose."""


def write_loss_by_position(folder: Path, set_name: str, rows: Iterable[tuple[int, int, float]]) -> None:
    """Write a table with a row for each bucket of positions: its first position, its scored tokens, nats per token.

    A position is the number of tokens that the model has read of the window; `folder` is `LOSS_BY_POSITION`, or the
    temporary folder that is renamed to it.
    """
    lines = [f"{position},{tokens},{loss}\n" for position, tokens, loss in rows]
    (folder / f"{set_name}.csv").write_text("position,tokens,loss\n" + "".join(lines), encoding="utf-8")
