"""Confidence intervals by drawing documents or problems with replacement (Efron 1979, percentile interval)."""

import numpy as np
import numpy.typing as npt

from stages.formats.reports import significant

Floats = npt.NDArray[np.float64]

CHUNK_ENTRIES = 2**22
"""Draws held in memory at once: 32 MB of counts."""


def resampled_sums(columns: Floats, resamples: int, seed: int) -> Floats:
    """Sums of each column over documents drawn with replacement; (documents, columns) -> (resamples, columns).

    The columns of one resample are sums over the same draw.
    """
    documents = len(columns)
    generator = np.random.default_rng(seed)
    rows_at_once = max(1, CHUNK_ENTRIES // documents)
    parts = []
    for first in range(0, resamples, rows_at_once):
        rows = min(rows_at_once, resamples - first)
        # Only how often each document is drawn matters: a matrix product with the counts gives the sums.
        draws = generator.multinomial(documents, np.full(documents, 1 / documents), size=rows)
        parts.append(draws.astype(np.float64) @ columns)
    return np.concatenate(parts)


def interval_95(values: Floats) -> tuple[float, float]:
    """The 2.5th and the 97.5th percentile, rounded."""
    low, high = np.percentile(values, [2.5, 97.5])
    return significant(float(low)), significant(float(high))
