"""The valley of losses over size and compute: at each compute a parabola in log size, whose bottom moves with compute.

    log y = k0 + k1 log x + k2 log z + k3 (log z)^2 + k4 log x log z

x is compute, z a size such as parameters, y the loss. Too small a model has learnt all that it can, too large a one has
seen too few tokens: the "IsoFLOP profiles" of Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models",
section 3.2, here all in one least squares. The bottom is at z = exp(-k2 / 2 k3) x^b with b = -k4 / 2 k3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from stages.formats.reports import stable

UNKNOWNS = 5

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Valley:
    """The law and what its 95 % intervals follow from."""

    coefficients: Values
    """k0 to k4."""
    covariance: Values
    """Of the coefficients; shape (5, 5)."""
    variance: float
    """Of a run's log y around the law."""
    n: int
    """Runs."""

    @property
    def b(self) -> float:
        """The exponent by which the best size grows with x."""
        *_, k3, k4 = self.coefficients
        return stable(-k4 / (2 * k3))

    @property
    def b_interval(self) -> tuple[float, float]:
        """Of 95 %, by the delta method and Student's t."""
        *_, k3, k4 = self.coefficients
        slope = np.array([0, 0, 0, k4 / (2 * k3**2), -1 / (2 * k3)])
        half = self._t * float(slope @ self.covariance @ slope) ** 0.5
        return stable(self.b - half), stable(self.b + half)

    def best(self, x: float) -> float:
        """The size with the lowest y."""
        _, _, k2, k3, _ = self.coefficients
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
        return float(special.stdtrit(self.n - UNKNOWNS, 0.975))


def fit_valley(runs: Sequence[tuple[float, float, float]]) -> Valley:
    """Fit the law to runs (x, z, y) by least squares of log y.

    The intervals are those of a linear regression: they cover the seeds and how far runs are from the law, and not
    whether it holds beyond them.

    Raises ValueError for fewer than seven runs, for x or z of fewer than three values, for values that are not
    positive, and where y has no lowest size.
    """
    values = np.array(sorted(runs), np.float64).reshape(-1, 3)
    x, z, y = values.T
    if len(values) < UNKNOWNS + 2 or min(len(set(x)), len(set(z))) < 3:
        raise ValueError(f"a valley needs {UNKNOWNS + 2} runs, with three different x and three different z")
    if values.min() <= 0:
        raise ValueError("a valley needs positive values")
    terms = np.stack([_terms(*size) for size in zip(x, z, strict=True)])
    coefficients = np.asarray(np.linalg.lstsq(terms, np.log(y), rcond=None)[0], np.float64)
    if coefficients[3] <= 0:
        raise ValueError("the runs show no valley: at equal x, y has no lowest z")
    residuals = np.log(y) - terms @ coefficients
    variance = float(residuals @ residuals) / (len(y) - UNKNOWNS)
    covariance = np.asarray(variance * np.linalg.inv(terms.T @ terms), np.float64)
    return Valley(coefficients, covariance, variance, len(y))


def _terms(x: float, z: float) -> Values:
    u, v = np.log(x), np.log(z)
    return np.array([1, u, v, v * v, u * v])
