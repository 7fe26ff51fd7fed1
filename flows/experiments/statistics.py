"""Statistics over seeds: means with t intervals, paired differences with Holm's correction, power laws."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from stages.formats.reports import stable

SIGNIFICANT = 0.05
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds."""

    n: int
    mean: float
    low: float | None
    """Lower bound of the 95 % interval of the mean by Student's t; None for one seed."""
    high: float | None


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of the values, NaN if there are none, with its interval."""
    n, mean = len(values), float(np.mean(values)) if len(values) else math.nan
    if n < 2:
        return Estimate(n, mean, None, None)
    if len(set(values)) == 1:  # scipy would divide zero by zero, and the mean may be rounded
        return Estimate(n, values[0], values[0], values[0])
    interval = stats.ttest_1samp(values, 0).confidence_interval(1 - SIGNIFICANT)
    return Estimate(n, mean, float(interval.low), float(interval.high))


@dataclass(frozen=True)
class PairedDifference(Estimate):
    """A mean of differences paired by seed."""

    p: float | None
    """Two-sided p value of the paired t test; None for fewer than two pairs."""


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> PairedDifference:
    """The mean of `values` minus `baseline`, which are in the same order of seeds."""
    differences = np.asarray(values, np.float64) - np.asarray(baseline, np.float64)
    mean = estimate(differences.tolist())
    if mean.low is None:
        p = None
    elif mean.low == mean.high:
        p = 1.0 if mean.mean == 0 else 0.0
    else:
        p = float(stats.ttest_1samp(differences, 0).pvalue)
    return PairedDifference(mean.n, mean.mean, mean.low, mean.high, p)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p values for their number (Holm 1979, A simple sequentially rejective multiple test procedure).

    The smallest is multiplied by their number, the next by one less, and so on; each is at least the previous one.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, index) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        corrected[index] = highest
    return corrected


@dataclass(frozen=True)
class PowerLaw:
    """y = a x^-b: a line through the logarithms of n runs."""

    a: float
    b: float
    b_interval: tuple[float, float]
    """95 % interval by Student's t, which includes the spread of the seeds and the lack of fit."""
    n: int
    sd: float
    """Standard deviation of log y around the line."""
    mean_log_x: float
    spread_log_x: float
    """Sum of squared deviations of log x from its mean."""

    def curve(self, x: Values) -> Values:
        """y at each x."""
        return np.asarray(self.a * x**-self.b)

    def band(self, x: Values) -> tuple[Values, Values]:
        """Lower and upper ends of the law's 95 % interval at each x."""
        distance = (np.log(x) - self.mean_log_x) ** 2 / self.spread_log_x
        half = stats.t.ppf(1 - SIGNIFICANT / 2, self.n - 2) * self.sd * np.sqrt(1 / self.n + distance)
        return self.curve(x) * np.exp(-half), self.curve(x) * np.exp(half)


def fit_power_law(runs: Sequence[tuple[float, float]]) -> PowerLaw:
    """Fit a power law to the (x, y) of runs by least squares of log y.

    Raises ValueError for fewer than three different x, or values that are not positive.
    """
    if len({x for x, _ in runs}) < 3:
        raise ValueError("a power law needs 3 distinct x values")
    if min(min(run) for run in runs) <= 0:
        raise ValueError("a power law needs positive values")
    x, y = np.log(np.array(sorted(runs), np.float64)).T
    line, n = stats.linregress(x, y), len(runs)
    half = float(stats.t.ppf(1 - SIGNIFICANT / 2, n - 2)) * line.stderr
    spread = float(((x - x.mean()) ** 2).sum())
    b = -line.slope
    return PowerLaw(
        a=stable(math.exp(line.intercept)),
        b=stable(b),
        b_interval=(stable(b - half), stable(b + half)),
        n=n,
        sd=float(line.stderr * spread**0.5),
        mean_log_x=float(x.mean()),
        spread_log_x=spread,
    )
