"""The evaluation report: how well a model predicts held-out text. evaluate writes it, card and publish read it.

reports/evaluate.json        the metrics, and in `receipt` what they were measured on, with what, and how
reports/loss_by_position/    a table for each set: what `dvc plots diff` compares
"""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, TypeAlias

from pydantic import BaseModel

from stages.formats.reports import Report

EVALUATE_REPORT = Path("reports/evaluate.json")
LOSS_BY_POSITION = Path("reports/loss_by_position")

Interval: TypeAlias = tuple[float, float]
"""The ends of a 95 % interval."""


class Intervals(BaseModel, frozen=True, extra="forbid"):
    """Bootstrap intervals over documents, by the name of the metric; null of a single document, which cannot vary."""

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
    """Paired bootstrap: both are measured on the same draw of documents. Null of a single one."""


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
    bits_per_byte_per_length: dict[str, float]
    """Tokens of the document, in buckets of powers of two (`000512-001023`) -> bits per byte."""
    compressors_bits_per_byte: dict[str, float]
    """Compressor -> bits per byte of the same text."""
    compared: dict[str, BaselineComparison]
    """A model of `evaluate.baselines` -> how it compares."""


class SetReceipt(BaseModel, frozen=True, extra="forbid"):
    """The contents of one set."""

    path: str
    documents_sha256: str
    """Hash of the documents' ids, a line each; an id is the sha256 of the text."""
    documents_per_source: dict[str, int]
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
    """A set of `evaluate.sets` -> its metrics."""
    receipt: EvaluationReceipt


def write_loss_by_position(folder: Path, set_name: str, rows: Iterable[tuple[int, int, float]]) -> None:
    """Write a table with a row for each bucket of positions: its first position, its scored tokens, nats per token.

    A position is the number of tokens that the model has read of the window; `folder` is `LOSS_BY_POSITION`, or the
    temporary folder that is renamed to it.
    """
    lines = [f"{position},{tokens},{loss}\n" for position, tokens, loss in rows]
    (folder / f"{set_name}.csv").write_text("position,tokens,loss\n" + "".join(lines), encoding="utf-8")
