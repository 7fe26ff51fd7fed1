"""The metrics of an evaluation, each with its interval, the counts and the convention it follows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.evaluate.likelihood.bootstrap import interval_95, resampled_sums
from stages.evaluate.likelihood.compressors import Compressed
from stages.formats.evaluation.report import Comparison, Evaluation, HeldOutMetrics, Interval, Intervals
from stages.formats.reports import significant
from stages.formats.splits import VALIDATION

METRICS = ("loss", "perplexity", "bits_per_byte")


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

    @property
    def columns(self) -> npt.NDArray[np.float64]:
        """nats, tokens and bytes; shape (documents, 3)."""
        return np.stack([self.nats, self.tokens, self.bytes], axis=1).astype(np.float64)

    @property
    def lengths(self) -> list[str]:
        """The bucket of each document's length: powers of two of tokens, written so that they sort as numbers do."""
        lower = [2 ** (int(tokens).bit_length() - 1) for tokens in self.tokens]
        return [f"{first:06d}-{2 * first - 1:06d}" for first in lower]


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How intervals are drawn."""

    resamples: int
    seed: int

    def intervals(self, columns: npt.NDArray[np.float64]) -> dict[str, Interval | None]:
        """Of the loss, perplexity and bits per byte of these documents (their nats, tokens and bytes).

        None of a single document, which cannot vary.
        """
        if len(columns) < 2:
            return dict.fromkeys(METRICS)
        drawn = series(resampled_sums(columns, self.resamples, self.seed))
        return {name: rounded(interval_95(values)) for name, values in drawn.items()}

    def interval(self, columns: npt.NDArray[np.float64]) -> Interval | None:
        """Of the bits per byte alone."""
        return self.intervals(columns)["bits_per_byte"]


def evaluation(measured: Mapping[str, HeldOutMetrics]) -> Evaluation:
    """The report: the metrics of the validation split, and those of each further set."""
    further = {name: metrics for name, metrics in measured.items() if name != VALIDATION}
    return Evaluation(**dict(measured[VALIDATION]), sets=further)


def held_out_metrics(
    scores: Scores, compressed: Compressed, baselines: Mapping[str, Scores], bootstrap: Bootstrap
) -> HeldOutMetrics:
    """Sum up a set's losses; intervals by drawing documents with replacement."""
    columns = scores.columns
    by_source, by_length = (parts(columns, names) for names in (scores.sources, scores.lengths))
    return HeldOutMetrics(
        **metrics(columns),
        documents=len(columns),
        tokens=int(scores.tokens.sum()),
        bytes=int(scores.bytes.sum()),
        bits_per_byte_per_source={name: bits_per_byte(part) for name, part in by_source.items()},
        bits_per_byte_per_length={name: bits_per_byte(part) for name, part in by_length.items()},
        interval_95=Intervals(
            **bootstrap.intervals(columns),
            bits_per_byte_per_source={name: bootstrap.interval(part) for name, part in by_source.items()},
            bits_per_byte_per_length={name: bootstrap.interval(part) for name, part in by_length.items()},
        ),
        compressors_bits_per_byte={name: significant(value) for name, value in asdict(compressed).items()},
        compared={name: compare(scores, baseline, bootstrap) for name, baseline in baselines.items()},
    )


def compare(ours: Scores, theirs: Scores, bootstrap: Bootstrap) -> Comparison:
    """The difference in bits per byte over the same documents, drawn together (paired bootstrap)."""
    columns = np.stack([ours.nats - theirs.nats, ours.bytes], axis=1).astype(np.float64)
    total = columns.sum(axis=0)
    interval = None
    if len(columns) > 1:
        nats, text_bytes = resampled_sums(columns, bootstrap.resamples, bootstrap.seed).T
        interval = rounded(interval_95(nats / (math.log(2) * text_bytes)))
    return Comparison(
        bits_per_byte=bits_per_byte(theirs.columns),
        difference=significant(total[0] / (math.log(2) * total[1])),
        difference_interval_95=interval,
    )


def parts(columns: npt.NDArray[np.float64], names: Sequence[str]) -> dict[str, npt.NDArray[np.float64]]:
    """The rows of each name, in the order of the names."""
    of_row = np.asarray(names)
    return {str(name): columns[of_row == name] for name in np.unique(of_row)}


def series(sums: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[np.float64]]:
    """Sums of (nats, tokens, bytes) along the last axis -> loss, perplexity, bits per byte."""
    nats, tokens, text_bytes = np.moveaxis(sums, -1, 0)
    loss = nats / tokens
    return dict(zip(METRICS, (loss, np.exp(loss), nats / (math.log(2) * text_bytes)), strict=True))


def metrics(columns: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Loss, perplexity and bits per byte of all documents together, rounded."""
    return {name: significant(float(value)) for name, value in series(columns.sum(axis=0)).items()}


def bits_per_byte(columns: npt.NDArray[np.float64]) -> float:
    """Of all documents together, rounded."""
    value: float = metrics(columns)["bits_per_byte"]
    return value


def rounded(interval: Interval) -> Interval:
    """Both ends rounded."""
    low, high = interval
    return significant(low), significant(high)


def mean_losses(
    nats: npt.NDArray[np.float64], tokens: npt.NDArray[np.int64], first: npt.NDArray[np.int64]
) -> list[tuple[int, int, float]]:
    """First position, scored tokens and nats per token of each bucket of positions in which a token was scored."""
    rows = zip(first.tolist(), tokens.tolist(), nats.tolist(), strict=True)
    return [(position, count, significant(loss / count)) for position, count, loss in rows if count]
