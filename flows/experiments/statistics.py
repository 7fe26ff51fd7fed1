"""Statistics over seeds: means with t intervals, paired differences with Holm's correction, fitted laws.

A power law is y = a x^-b + c. A valley is that of losses over size and compute: at each compute a parabola in log size,
whose bottom moves with compute.

    log y = k0 + k1 log x + k2 log z + k3 (log z)^2 + k4 log x log z + k5 (log x)^2

x is compute, z a size such as parameters, y the loss. Too small a model has learnt all that it can, too large a one has
seen too few tokens: the "IsoFLOP profiles" of Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models",
section 3.2, here all in one least squares. The bottom is at z = exp(-k2 / 2 k3) x^b with b = -k4 / 2 k3,
and along it log y is a parabola in log x: the lower a loss, the slower it falls.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtr, stdtrit

from stages.formats.reports import stable

SIGNIFICANT = 0.05
RESAMPLES = 1000
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """What the seeds say of one number."""

    n: int
    mean: float
    sd: float | None
    """Standard deviation of the seeds, divided by n - 1; None for one seed."""
    low: float | None
    """Of the 95 % interval of the mean by Student's t; None for one seed."""
    high: float | None


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of the values, NaN for none, with its spread."""
    n, mean = len(values), float(np.mean(values)) if len(values) else math.nan
    if n < 2:
        return Estimate(n, mean, None, None, None)
    if len(set(values)) == 1:  # whose mean, and so whose spread, rounding may change
        return Estimate(n, values[0], 0.0, values[0], values[0])
    sd = float(np.std(values, ddof=1))
    return Estimate(n, mean, sd, *t_interval(n, mean, sd))


def t_interval(n: int, mean: float, sd: float, level: float = SIGNIFICANT) -> tuple[float, float]:
    """The interval of a mean by Student's t that leaves out a share `level`: by default that of 95 %."""
    half = float(stdtrit(n - 1, 1 - level / 2)) * sd / n**0.5
    return mean - half, mean + half


@dataclass(frozen=True)
class Difference(Estimate):
    """A mean of differences of pairs, each of one seed."""

    p: float | None
    """Two-sided, of the paired t test; None for fewer than two pairs."""


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """`values` minus `baseline`, which hold the same seeds in the same order."""
    differences = np.asarray(values, np.float64) - np.asarray(baseline, np.float64)
    found = estimate(differences.tolist())
    if found.sd is None:
        p = None
    elif found.sd == 0:
        p = 1.0 if found.mean == 0 else 0.0
    else:
        p = float(2 * stdtr(found.n - 1, -abs(found.mean) * found.n**0.5 / found.sd))
    return Difference(found.n, found.mean, found.sd, found.low, found.high, p)


def holm(p_values: Sequence[float | None]) -> list[tuple[float, float] | tuple[None, None]]:
    """Each p value corrected for their number (at 5 %, one family in twenty has a false one), and its level.

    Holm (1979), A simple sequentially rejective multiple test procedure: the smallest is multiplied by their number,
    the next by one less, and so on; none is smaller than the one before it. Its level is that of its test, 5 % divided
    by as many as are tested at its turn. The procedure ends with the first that is not significant, whose level those
    after it have too. So an interval of 1 - level excludes no difference exactly where the corrected p is below 5 %.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    found: list[tuple[float, float] | tuple[None, None]] = [(None, None)] * len(p_values)
    highest, tested = 0.0, len(known)
    for rank, (p, index) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        found[index] = (highest, SIGNIFICANT / tested)
        if p * tested < SIGNIFICANT:
            tested = len(known) - rank - 1
    return found


def is_best(own: Sequence[float], others: Sequence[Sequence[float]], *, lower: bool) -> bool:
    """Whether values are better than all others, each by a paired t test, Holm-corrected, at 5 %.

    Two values have to be there of each, of the same seeds in the same order.
    """
    if not others or any(len(other) != len(own) for other in others):
        return False
    differences = [paired_difference(own, other) for other in others]
    corrected = holm([difference.p for difference in differences])
    return all(
        p is not None and p < SIGNIFICANT and (difference.mean < 0) == lower
        for difference, (p, _) in zip(differences, corrected, strict=True)
    )


@dataclass(frozen=True)
class PowerLaw:
    """y = a x^-b + c of n runs, with bootstrap intervals of 95 % where every group has at least two runs.

    A group of one run says nothing about the seeds. c is 0 where no offset was fitted.
    """

    a: float
    b: float
    c: float
    b_interval: tuple[float | None, float | None]
    n: int
    resampled: Values
    """a, b, c of each resample; shape (resamples, 3), (0, 3) without an interval."""
    percentiles: tuple[float, float]
    """Of the resamples, that bound 95 %."""

    def curve(self, x: Values) -> Values:
        """y at each x."""
        return np.asarray(self.a * x**-self.b + self.c)

    def band(self, x: Values) -> tuple[Values, Values] | None:
        """The bounds of y's 95 % interval at each x; None without an interval."""
        if not len(self.resampled):
            return None
        a, b, c = (self.resampled[:, k, np.newaxis] for k in range(3))
        low, high = np.percentile(a * x**-b + c, self.percentiles, axis=0)
        return low, high


def fit_power_law(
    groups: Sequence[tuple[float, Sequence[float]]], *, offset: bool, resamples: int = RESAMPLES, seed: int = 0
) -> PowerLaw:
    """Fit a power law to groups of runs, each an x and the y of its seeds, by least squares of log y.

    A resample draws the runs of each group with replacement, so the interval covers the seeds, not whether the law
    itself is right. A sample's deviations from its own mean are too small: they are scaled by
    sqrt(n / (n - 1)), and the percentiles are those at which Student's t and not the normal distribution leaves out 5 %
    (the expanded percentile interval of Hesterberg 2015, What Teachers Should Know About the Bootstrap). A group with
    one run would not vary, and the interval would be too narrow: there is none unless every group has two runs.

    Raises ValueError for fewer than three different x (four with an offset), and for values that are not positive.
    """
    groups = sorted(group for group in groups if len(group[1]))
    if len({x for x, _ in groups}) < 3 + offset:
        raise ValueError(f"a power law {'with an offset ' if offset else ''}needs {3 + offset} different x")
    if min(min(x, *ys) for x, ys in groups) <= 0:
        raise ValueError("a power law needs positive values")
    x = np.concatenate([np.full(len(ys), x) for x, ys in groups])
    log_y = np.log(np.concatenate([ys for _, ys in groups]))
    found = _fit_with_offset(np.log(x), log_y) if offset else _fit(np.log(x), log_y[np.newaxis])[0]
    a, b, c = map(stable, found)
    if min(len(ys) for _, ys in groups) < 2:
        return PowerLaw(a, b, c, (None, None), len(x), np.empty((0, 3)), (0.0, 100.0))
    generator = np.random.default_rng(seed)
    drawn = np.concatenate([_resampled(np.log(ys), resamples, generator) for _, ys in groups], axis=1)
    again = _fit(np.log(x), drawn)
    if offset:
        again = np.stack([_fit_with_offset(np.log(x), row, start=found) for row in drawn])
    tail = 100 * float(ndtr(-stdtrit(len(x) - len(groups), 0.975)))
    percentiles = (tail, 100 - tail)
    low, high = np.percentile(again[:, 1], percentiles)
    return PowerLaw(a, b, c, (stable(low), stable(high)), len(x), again, percentiles)


def _resampled(log_y: Values, resamples: int, generator: np.random.Generator) -> Values:
    """(resamples, n) of one group's values, which are at least two."""
    n, mean = len(log_y), log_y.mean()
    scaled = mean + (log_y - mean) * (n / (n - 1)) ** 0.5
    return np.asarray(scaled[generator.integers(0, n, size=(resamples, n))])


def _fit(log_x: Values, log_y: Values) -> Values:
    """A line through the logarithms; (fits, n) -> (fits, 3)."""
    from_mean = log_x - log_x.mean()
    slope = log_y @ from_mean / (from_mean @ from_mean)
    intercept = log_y.mean(axis=1) - slope * log_x.mean()
    return np.stack([np.exp(intercept), -slope, np.zeros_like(slope)], axis=1)


def _fit_with_offset(log_x: Values, log_y: Values, start: Values | None = None) -> Values:
    """a, b and c by least squares of log y.

    Without a start the best of three is taken: with c given, log(y - c) is a line, which gives a and b.
    """

    from scipy.optimize import least_squares  # here: most files have no such fit, and it takes a while to import

    def residuals(parameters: Values) -> Values:
        log_a, b, log_c = parameters
        return np.asarray(np.logaddexp(log_a - b * log_x, log_c) - log_y)

    y = np.exp(log_y)
    offsets = [share * float(y.min()) for share in (0.1, 0.5, 0.9)]
    starts = [start] if start is not None else [[*_fit(log_x, np.log(y - c)[np.newaxis])[0, :2], c] for c in offsets]
    fits = [least_squares(residuals, [np.log(a), b, np.log(c)]) for a, b, c in starts]
    log_a, b, log_c = min(fits, key=lambda fit: float(fit.cost)).x
    return np.array([np.exp(log_a), b, np.exp(log_c)])


UNKNOWNS = 6

ALIKE = 1e4
"""Condition number above which the runs do not tell the terms of a valley apart: its solution would be rounding."""

LARGEST_LOG = 700
"""About that of the largest number."""


@dataclass(frozen=True)
class Valley:
    """The law of n runs and what its 95 % intervals follow from."""

    coefficients: Values
    """k0 to k5."""
    covariance: Values
    """Of the coefficients; shape (6, 6)."""
    variance: float
    """Of a run's log y around the law."""
    n: int

    @property
    def b(self) -> float:
        """The exponent by which the best size grows with x."""
        *_, k3, k4, _ = self.coefficients
        return stable(-k4 / (2 * k3))

    @property
    def b_interval(self) -> tuple[float, float]:
        """Of 95 %, by the delta method and Student's t."""
        *_, k3, k4, _ = self.coefficients
        slope = np.array([0, 0, 0, k4 / (2 * k3**2), -1 / (2 * k3), 0])
        half = self._t * float(slope @ self.covariance @ slope) ** 0.5
        return stable(self.b - half), stable(self.b + half)

    def best(self, x: float) -> float:
        """The size with the lowest y."""
        _, _, k2, k3, _, _ = self.coefficients
        return stable(math.exp(-k2 / (2 * k3)) * x**self.b)

    def at(self, x: float, z: float) -> float:
        """y of a size."""
        return stable(math.exp(_terms(x, z) @ self.coefficients))

    def interval(self, x: float, z: float) -> tuple[float, float]:
        """Within which one run is expected in 95 % of cases, if the law is right."""
        terms = _terms(x, z)
        half = self._t * float(self.variance + terms @ self.covariance @ terms) ** 0.5
        return stable(self.at(x, z) * math.exp(-half)), stable(self.at(x, z) * math.exp(half))

    @property
    def _t(self) -> float:
        return float(stdtrit(self.n - UNKNOWNS, 0.975))


def fit_valley(runs: Sequence[tuple[float, float, float]]) -> Valley:
    """Fit the law to runs (x, z, y) by least squares of log y.

    The intervals are those of a linear regression: they cover the seeds and how far runs are from the law, and not
    whether it holds beyond them.

    Raises ValueError for fewer than eight runs, for x or z of fewer than three values, where z follows from x, for
    values that are not positive, and where y has no lowest size.
    """
    values = np.array(sorted(runs), np.float64).reshape(-1, 3)
    x, z, y = values.T
    if len(values) < UNKNOWNS + 2 or min(len(set(x)), len(set(z))) < 3:
        raise ValueError(f"a valley needs {UNKNOWNS + 2} runs, with three different x and three different z")
    if values.min() <= 0:
        raise ValueError("a valley needs positive values")
    sizes = np.log(values[:, :2])
    sizes = (sizes - sizes.mean(axis=0)) / sizes.std(axis=0)
    if np.linalg.cond(np.stack([_terms(*np.exp(size)) for size in sizes])) > ALIKE:
        raise ValueError(
            "a valley needs several z at several x: here z follows from x, so no size is known as the best"
        )
    terms = np.stack([_terms(*size) for size in zip(x, z, strict=True)])
    coefficients = np.asarray(np.linalg.lstsq(terms, np.log(y), rcond=None)[0], np.float64)
    _, _, k2, k3, k4, _ = coefficients
    # So flat that its bottom is at no number, be it at x = 1, where the law is told.
    is_flat = k3 <= 0 or np.abs((k2 + k4 * np.log([1, *x])) / (2 * k3)).max() > LARGEST_LOG
    if is_flat:
        raise ValueError("the runs show no valley: at equal x, y has no lowest z")
    residuals = np.log(y) - terms @ coefficients
    variance = float(residuals @ residuals) / (len(y) - UNKNOWNS)
    covariance = np.asarray(variance * np.linalg.inv(terms.T @ terms), np.float64)
    return Valley(coefficients, covariance, variance, len(y))


def _terms(x: float, z: float) -> Values:
    u, v = np.log(x), np.log(z)
    return np.array([1, u, v, v * v, u * v, u * u])
