"""pass@k: the probability that at least one of k samples of a problem passes (Chen et al. 2021, arXiv:2107.03374)."""

from collections.abc import Sequence

import numpy as np

from stages.evaluate.likelihood.bootstrap import interval_95, resampled_sums
from stages.formats.evaluation.figures import significant
from stages.formats.evaluation.verdicts import PassAtK


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The unbiased estimate from `samples` of one problem, of which `passed` pass (equation 1).

    It is 1 - C(samples - passed, k) / C(samples, k), the share of all choices of k samples that hold one that passes,
    as a product that does not overflow. Needs samples >= k.
    """
    if samples - passed < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(samples - passed + 1, samples + 1)))


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int, resamples: int, seed: int) -> PassAtK:
    """The mean over problems, given as (samples, passed), and its interval by drawing problems with replacement."""
    values = np.array([[pass_at_k(samples, passed, k)] for samples, passed in counts])
    value = significant(float(values.mean()))
    if len(values) < 2:  # a single problem is the same in each draw
        return PassAtK(value=value, interval_95=None)
    low, high = interval_95(resampled_sums(values, resamples, seed)[:, 0] / len(values))
    return PassAtK(value=value, interval_95=(significant(low), significant(high)))
