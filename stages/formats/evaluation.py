"""The evaluation report: how well a model predicts the held-out split. evaluate writes it, publish reads it."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from stages.formats.reports import write_json
from stages.runtime.entry import UserError

EVALUATE_REPORT = Path("reports/evaluate.json")


class Evaluation(BaseModel):
    """The metrics with their intervals, counts and convention."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bits_per_byte: float
    loss: float
    """Nats per token."""
    perplexity: float
    interval_95: dict[str, tuple[float, float]]
    """Metric -> bootstrap interval over documents."""
    documents: int
    tokens: int
    bytes: int
    bits_per_byte_per_source: dict[str, float]
    baselines_bits_per_byte: dict[str, float]
    """Compressor -> bits per byte of the same text."""
    convention: str
    """How the metrics were computed, in prose."""


def write_evaluation(evaluation: Evaluation) -> None:
    """Write `reports/evaluate.json`."""
    write_json(EVALUATE_REPORT, evaluation.model_dump(mode="json"))


def read_evaluation(path: Path = EVALUATE_REPORT) -> Evaluation:
    """Read a report. Raises UserError that names the first field that is missing or wrong."""
    try:
        return Evaluation.model_validate_json(path.read_bytes())
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"]))
        raise UserError(f"{path}: {field}: {fault['msg']}; run `dvc repro evaluate`") from None
