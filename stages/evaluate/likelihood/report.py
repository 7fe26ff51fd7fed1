"""The metrics of an evaluation, each with its interval, the counts and the convention it follows."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from stages.evaluate.likelihood.baselines import Baselines
from stages.evaluate.likelihood.bootstrap import interval_95, resampled_sums
from stages.formats.evaluation import Evaluation

SIGNIFICANT_DIGITS = 6
"""Of the report's values: further digits are float32's rounding, which changes with the batch size."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The loss and size of each document; every array has shape (documents,)."""

    nats: npt.NDArray[np.float64]
    """Negative log-likelihood."""
    tokens: npt.NDArray[np.int64]
    """Tokens scored, the closing end-of-sequence id counted."""
    bytes: npt.NDArray[np.int64]
    """UTF-8 bytes of the text."""
    sources: Sequence[str]
    """The package, repository or data set of each document."""


def evaluate_scores(
    scores: Scores,
    baselines: Baselines,
    context_length: int,
    stride: int,
    resamples: int,
    seed: int,
) -> Evaluation:
    """Sum up the documents' losses; intervals by drawing documents with replacement."""
    columns = np.stack([scores.nats, scores.tokens, scores.bytes], axis=1).astype(np.float64)
    drawn = resampled_sums(columns, resamples, seed)
    intervals = {name: interval_95(values) for name, values in series(drawn).items()}
    return Evaluation(
        **metrics(columns.sum(axis=0)),
        interval_95={name: (significant(low), significant(high)) for name, (low, high) in intervals.items()},
        documents=len(scores.nats),
        tokens=int(scores.tokens.sum()),
        bytes=int(scores.bytes.sum()),
        bits_per_byte_per_source=per_source(scores, columns),
        baselines_bits_per_byte={name: significant(value) for name, value in asdict(baselines).items()},
        convention=convention(context_length, stride, resamples),
    )


def series(sums: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[np.float64]]:
    """Sums of (nats, tokens, bytes) along the last axis -> loss, perplexity, bits per byte."""
    nats, tokens, text_bytes = np.moveaxis(sums, -1, 0)
    loss = nats / tokens
    return {"loss": loss, "perplexity": np.exp(loss), "bits_per_byte": nats / (math.log(2) * text_bytes)}


def metrics(sums: npt.NDArray[np.float64]) -> dict[str, float]:
    """The same of one row of sums, rounded."""
    return {name: significant(float(value)) for name, value in series(sums).items()}


def per_source(scores: Scores, columns: npt.NDArray[np.float64]) -> dict[str, float]:
    """Bits per byte of each source's documents."""
    sources = np.asarray(scores.sources)
    return {str(name): metrics(columns[sources == name].sum(axis=0))["bits_per_byte"] for name in np.unique(sources)}


def significant(value: float) -> float:
    """Rounded to `SIGNIFICANT_DIGITS`."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def convention(context_length: int, stride: int, resamples: int) -> str:
    """How the metrics were computed, in prose."""
    return (
        "Every token of the held-out split is scored once. Each document is scored on its own, after an "
        "end-of-sequence id, and the id that closes it is scored too. "
        f"Windows of {context_length} tokens advance by {stride}. "
        "Loss is nats per token over all tokens, perplexity its exponential, bits per byte the same sum over the UTF-8 "
        f"bytes of the text; float32. Intervals: 95 % percentile bootstrap over documents, {resamples} draws. "
        "Baselines: all documents compressed as one stream. lm-eval's bits per byte differ slightly: its windows are "
        "disjoint, so tokens have less context, and it does not score the closing id."
    )
